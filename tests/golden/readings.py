#!/usr/bin/env python3
"""Makes readings.json: embeddings (mean and last) of texts and scores of documents, by transformers, for tests/tests/serve_reading.rs.

    python readings.py

The weights are read into float32 and run with eager attention. Embeddings are the hidden states behind the final norm,
pooled and then divided by their Euclidean norm. A score is the softmax over the logits of yes and no, at the end of the
question in the model's chat template, as Qwen3-Reranker's card describes it.

Made with Python 3.11, torch 2.15.0, transformers 5.24.0.
"""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "gemma3-2m-draft"
TEXTS = ["Who lives on the island?", "A fox"]
DOCUMENTS = ["A fox lives on the island.", "Bread is baked.", "The sea is wide and cold, and ships are on it."]
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def main():
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()

    def unit(row):
        return (row / row.norm()).tolist()

    def embeddings(text):
        hidden = model.model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state[0]
        return {"text": text, "mean": unit(hidden.mean(0)), "last": unit(hidden[-1])}

    def score(document):
        question = f"<Instruct>: {INSTRUCTION}\n<Query>: {TEXTS[0]}\n<Document>: {document}"
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        yes, no = (tokenizer(word, add_special_tokens=False).input_ids[0] for word in ("yes", "no"))
        return torch.softmax(model(ids).logits[0, -1, [yes, no]], dim=0)[0].item()

    with torch.no_grad():
        readings = {
            "embeddings": [embeddings(text) for text in TEXTS],
            "query": TEXTS[0],
            "scores": [{"document": document, "score": score(document)} for document in DOCUMENTS],
        }
    (HERE / "readings.json").write_text(json.dumps(readings, indent=1) + "\n")


if __name__ == "__main__":
    main()
