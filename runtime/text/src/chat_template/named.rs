//! Templates of model families by llama-server's names for them, for models that came without one. They write no token that begins a
//! text: the tokenizer adds it, where the model has one.

/// Name and Jinja source.
pub(super) const TEMPLATES: [(&str, &str); 6] = [
    (
        "chatml",
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "command-r",
        "{% set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}{% for message in messages %}\
         <|START_OF_TURN_TOKEN|><|{{ names[message.role] }}_TOKEN|>{{ message.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}\
         {% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
    ),
    (
        "gemma",
        "{% set ns = namespace(system='') %}{% for message in messages %}{% if message.role == 'system' %}\
         {% set ns.system = ns.system + (message.content | trim) %}{% else %}\
         <start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n\
         {% if ns.system and message.role != 'assistant' %}{{ ns.system }}\n\n{% set ns.system = '' %}{% endif %}\
         {{ message.content | trim }}<end_of_turn>\n{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
    ),
    (
        "llama3",
        "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>\
         {% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    ),
    (
        "phi3",
        "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
    (
        "zephyr",
        "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|endoftext|>\n{% endfor %}\
         {% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    ),
];
