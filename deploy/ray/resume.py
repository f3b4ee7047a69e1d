"""What a request has received until its replica was gone, and the request for the rest. For OpenAI's streams; independent of Ray.

An answer that is not a stream is asked for again, whole: its client has nothing of it. A stream goes on after its last token: another
replica gets the prompt and the tokens that were sent, as token ids, so that the text is exactly what it would have been. That needs a
stream of one text; where tool calls or reasoning were sent, it ends with an error.
"""

import hashlib
import json

BLOCK_BYTES = 256
MAX_BLOCKS = 256
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# Fields of a chat that a completion of its tokens does not have.
OF_CHAT = {"messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "chat_template_kwargs",
           "continue_final_message", "add_generation_prompt", "reasoning_effort", "stream_options"}


def prefix_blocks(body):
    """Hashes of the beginnings of a request's prompt, each one block longer. Equal hashes, equal beginnings."""
    try:
        fields = json.loads(body)
        prompt = fields.get("messages") or fields.get("prompt") or fields.get("input") or ""
        # Tools are rendered before the messages.
        text = json.dumps([fields.get("tools"), fields.get("system"), prompt]).encode()
    except (ValueError, AttributeError):
        return []
    hashes, state = [], hashlib.blake2b(digest_size=16)
    for start in range(0, min(len(text), BLOCK_BYTES * MAX_BLOCKS), BLOCK_BYTES):
        state.update(text[start:start + BLOCK_BYTES])
        hashes.append(state.copy().hexdigest())
    return hashes


class Resumption:
    """One request and what its client has received."""

    def __init__(self, path, body):
        self.path, self.body = path, body
        try:
            self.fields = json.loads(body)
        except ValueError:
            self.fields = {}
        if not isinstance(self.fields, dict):
            self.fields = {}
        # What can be gone on with: one text, of a chat or of a prompt that is a text or a list of ids.
        prompt = self.fields.get("prompt")
        self.is_one = self.fields.get("n", 1) == 1 and self.fields.get("best_of", 1) == 1 and not self.fields.get("echo")
        is_prompt = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, int) for one in prompt))
        self.is_known = self.is_one and bool(self.fields.get("stream")) and (path == CHAT or (path == TEXT and is_prompt))
        self.is_stream = False
        self.whole = b""
        self.rest = b""
        self.tokens = []
        self.first = None
        self.is_resumed = False
        self.is_done = False
        self.anything_sent = False
        self.is_text = True

    def first_body(self):
        """The request as it is sent first: with the ids of tokens, where the stream may have to be gone on with."""
        return json.dumps({**self.fields, "return_tokens": True}).encode() if self.is_known else self.body

    def begin(self, head):
        """Another replica answers."""
        self.rest, self.whole = b"", b""
        self.is_stream = head["headers"].get("Content-Type", "").startswith(("text/event-stream", "application/x-ndjson"))

    def has_sent(self):
        return self.anything_sent

    def can_resume(self):
        return not self.anything_sent or (self.is_known and self.is_text)

    def is_cut(self):
        """Whether a stream ended without its last event."""
        return self.is_stream and self.is_known and not self.is_done

    def feed(self, piece):
        """What the client gets of a piece of the answer."""
        if not self.is_stream:
            self.whole += piece
            return
        if not self.is_known:
            self.anything_sent = True
            yield piece
            return
        *events, self.rest = (self.rest + piece).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self.is_done = True
                yield event + b"\n\n"
            elif event.startswith(b"data: "):
                if (chunk := self._chunk(json.loads(event[6:]))) is not None:
                    self.anything_sent = True
                    yield b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
            else:
                yield event + b"\n\n"

    def _chunk(self, chunk):
        """A chunk in the form of the first replica's."""
        if "error" in chunk:
            self.is_done = True
            return chunk
        for choice in chunk.get("choices", ()):
            ids = choice.get("token_ids") or []
            self.tokens += ids
            if "return_tokens" not in self.fields:
                choice.pop("token_ids", None)
            if self.is_resumed and self.path == CHAT and "text" in choice:
                text = choice.pop("text")
                choice["delta"] = {"content": text} if text else {}
            delta = choice.get("delta") or {}
            if delta.get("tool_calls") or delta.get("reasoning_content"):
                self.is_text = False
        if self.first is None:
            self.first = {name: chunk.get(name) for name in ("id", "object", "created", "model")}
        chunk.update(self.first)
        if self.is_resumed and (usage := chunk.get("usage")):
            usage["prompt_tokens"] -= self.resumed_at
            usage["completion_tokens"] += self.resumed_at
        return chunk

    def is_full(self):
        """Whether all tokens were sent that the request permits, and only the last event is missing."""
        limit = self._limit()
        return self.is_known and limit is not None and len(self.tokens) >= limit

    def last_events(self):
        """The end of a stream that has all its tokens."""
        choice = {"index": 0, "finish_reason": "length", **({"delta": {}} if self.path == CHAT else {"text": ""})}
        yield b"data: " + json.dumps({**(self.first or {}), "choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _limit(self):
        return self.fields.get("max_completion_tokens") or self.fields.get("max_tokens")

    async def rest_body(self, ask):
        """The request for what follows the tokens that were sent. `ask(path, body)` is answered by a replica."""
        if self.path == CHAT:
            rendered = json.loads(await ask("/apply-template", json.dumps(self.fields).encode()))["prompt"]
            prompt = json.loads(await ask("/tokenize", json.dumps({"content": rendered}).encode()))["tokens"]
        else:
            prompt = self.fields["prompt"]
        prompt = [prompt] if isinstance(prompt, str) else prompt
        self.is_resumed, self.resumed_at = True, len(self.tokens)
        rest = {name: value for name, value in self.fields.items() if name not in OF_CHAT}
        if (limit := self._limit()) is not None:
            rest["max_tokens"] = limit - self.resumed_at
        if self.fields.get("stream_options"):
            rest["stream_options"] = self.fields["stream_options"]
        return json.dumps({**rest, "prompt": [*prompt, *self.tokens], "stream": True, "return_tokens": True}).encode()

    def failure(self, message):
        """The last event of a stream that ends early."""
        return b"data: " + json.dumps({"error": {"message": message, "type": "unavailable_error", "code": 503}}).encode() + b"\n\n"
