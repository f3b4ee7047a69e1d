"""Asks a server the same by each client library, whole and streamed: python3 clients.py HOST:PORT. All of them have to get the same answer."""
import sys
import typing

import anthropic
import langchain_openai
import litellm
import ollama
import openai
import pydantic

url = "http://" + sys.argv[1]
question = [{"role": "user", "content": "Who lives on the island?"}]
tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}}

client = openai.OpenAI(base_url=url + "/v1", api_key="any")
model = client.models.list().data[0].id
chat = dict(model=model, messages=question, max_tokens=12, temperature=0)
reply = client.chat.completions.create(**chat)
text = reply.choices[0].message.content
assert text and reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 12, reply
chunks = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **chat))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
assert chunks[-1].usage.completion_tokens == 12

named = {"type": "function", "function": {"name": "look"}}
called = client.chat.completions.create(tools=[tool], tool_choice=named, **chat)
assert called.choices[0].message.tool_calls[0].function.name == "look", called
chunks = client.chat.completions.create(stream=True, tools=[tool], tool_choice=named, **chat)
calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
assert calls[0].function.name == "look" and all(call.index == 0 for call in calls), calls

listed = client.chat.completions.create(logprobs=True, top_logprobs=3, **chat).choices[0].logprobs.content
assert "".join(token.token for token in listed) == text and all(len(token.top_logprobs) == 3 for token in listed), listed
assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in listed), listed


class Goat(pydantic.BaseModel):
    color: typing.Literal["black", "white"]
    is_loud: bool


# White space between its parts is bounded, at 21 bytes each.
whole = dict(chat, max_tokens=240)
goat = client.chat.completions.parse(response_format=Goat, **whole).choices[0].message.parsed
assert isinstance(goat, Goat), goat

respond = dict(model=model, input=question, max_output_tokens=12, temperature=0)
assert client.responses.create(**respond).output_text == text
streamed = ""
for event in client.responses.create(stream=True, **respond):
    if event.type == "response.output_text.delta":
        streamed += event.delta
assert streamed == text
assert client.completions.create(model=model, prompt="The sea", max_tokens=4).choices[0].text

client = anthropic.Anthropic(base_url=url, api_key="any")
# Newer releases of the library have no parameter for it.
chat["extra_body"] = {"temperature": chat.pop("temperature")}
message = client.messages.create(**chat)
assert message.content[0].text == text and message.stop_reason == "max_tokens", message
with client.messages.stream(**chat) as stream:
    assert "".join(stream.text_stream) == text
    assert stream.get_final_message().usage.output_tokens == 12
look = {"name": "look", "input_schema": {"type": "object"}}
called = client.messages.create(tools=[look], tool_choice={"type": "tool", "name": "look"}, **chat)
assert called.content[0].name == "look", called
assert client.messages.count_tokens(model=model, messages=question).input_tokens > 0
try:
    client.messages.create(model=model, messages=[{"role": "user", "content": [{"type": "image"}]}], max_tokens=1)
    raise AssertionError("an image was not refused")
except anthropic.BadRequestError as error:
    assert "messages[0]" in str(error), error

client = ollama.Client(host=url)
ask = dict(model=model, messages=question, options={"num_predict": 12, "temperature": 0})
assert client.chat(**ask).message.content == text
assert "".join(part.message.content for part in client.chat(stream=True, **ask)) == text
assert client.list().models[0].model == model
assert "tools" in client.show(model).capabilities
assert client.generate(model=model, prompt="The sea", raw=True, options={"num_predict": 4}).response

ask = dict(model="openai/" + model, api_base=url + "/v1", api_key="any", messages=question, max_tokens=12, temperature=0)
reply = litellm.completion(**ask)
assert reply.choices[0].message.content == text and reply.usage.completion_tokens == 12, reply
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **ask))
assert streamed == text, streamed
called = litellm.completion(tools=[tool], tool_choice=named, **ask)
assert called.choices[0].message.tool_calls[0].function.name == "look", called
try:
    litellm.completion(**dict(ask, messages=[{"role": "user", "content": "The sea. " * 300}]))
    raise AssertionError("a prompt beyond the context was answered")
except litellm.ContextWindowExceededError:
    pass

chain = langchain_openai.ChatOpenAI(model=model, base_url=url + "/v1", api_key="any", max_tokens=12, temperature=0)
assert chain.invoke(question).content == text
assert "".join(chunk.content for chunk in chain.stream(question)) == text
called = chain.bind_tools([tool], tool_choice="look").invoke(question)
# Its arguments are cut off.
assert [call["name"] for call in called.tool_calls + called.invalid_tool_calls] == ["look"], called
long = langchain_openai.ChatOpenAI(model=model, base_url=url + "/v1", api_key="any", max_tokens=240, temperature=0)
goat = long.with_structured_output(Goat, method="json_schema").invoke(question)
assert isinstance(goat, Goat), goat
