#!/usr/bin/env python3
"""Writes tiny models as GGUF files by llama.cpp's own converter, without a vocabulary.

    python gguf_of.py LLAMA_CPP NAME...    models/tiny/NAME as models/gguf/NAME.gguf, weights as they are

LLAMA_CPP is a folder of llama.cpp's sources, of any version.
"""

import sys
from pathlib import Path

from safetensors import safe_open

MODELS = Path(__file__).resolve().parent.parent / "models"
KINDS = {"float16": "MOSTLY_F16", "float32": "ALL_F32"}


def write(folder, out):
    import gguf

    converter, config = converter_of(folder)
    # Else a head that predicts further tokens is expected.
    converter.no_mtp = not has_head(folder)
    kind = KINDS.get(config.get("torch_dtype") or config.get("dtype"), "MOSTLY_BF16")
    model = converter(folder, gguf.LlamaFileType[kind], out)
    # Mistral 3's converter has another inside.
    model = getattr(model, "impl", model)
    model.set_vocab = lambda: None
    if "vocab_size_per_layer_input" in config:
        # The converter adds rows of zeros for tokens that are no text, which transformers reads as token 0.
        model.hparams["vocab_size"] = config["vocab_size_per_layer_input"]
    model.write()


def has_head(folder):
    """Whether the folder has a head that predicts the token behind the next one."""
    files = [safe_open(path, "np") for path in folder.glob("model*.safetensors")]
    return any(name.startswith("mtp.") for file in files for name in file.keys())


def converter_of(folder):
    """The class that converts a folder, and the folder's config."""
    try:
        from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    except ImportError:
        # Versions before 2026.
        from convert_hf_to_gguf import Model

        config = Model.load_hparams(folder)
        return Model.from_model_architecture(config["architectures"][0]), config
    config = ModelBase.load_hparams(folder, False)
    return get_model_class(get_model_architecture(config, ModelType.TEXT)), config


if __name__ == "__main__":
    sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]
    for name in sys.argv[2:]:
        write(MODELS / "tiny" / name, MODELS / "gguf" / f"{name}.gguf")
