"""The answer of `POST /v1/responses`, whole and as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import cast

from redraft.engine.request import Logprobs
from redraft.server.http.sse import Chunks
from redraft.server.openai.exchange import Exchange
from redraft.server.openai.replies import ChatForm, Json, chat_logprobs
from redraft.server.openai.response_fields import Responses


class ResponseForm:
    """One response. Its output is a message, calls of functions, or both."""

    def __init__(self, body: Responses, exchange: Exchange) -> None:
        self.body, self.exchange = body, exchange
        self.form = cast(ChatForm, exchange.work.form)
        self.id, self.item = f"resp_{secrets.token_hex(16)}", f"msg_{secrets.token_hex(16)}"
        self.created, self.number = int(time.time()), -1
        self._opened = False
        self._place: Json = {"item_id": self.item, "output_index": 0, "content_index": 0}

    def whole(self) -> Json:
        """The finished response."""
        (done,) = self.exchange.done()
        calls, rest = self.form.calls(done)
        text = "" if self.form.choice.forced else done.text + rest
        rows = [] if self.form.choice.forced else self._rows(done.content_logprobs)
        cut = done.finish in ("length", "deadline") and not calls
        status = "incomplete" if cut else "completed"
        output = [self._message(status, _part(text, rows))] if text or not calls else []
        output += [_call(call["id"], **call["function"]) for call in calls]
        return self._response(status) | {
            "output": output,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": self._usage(),
        }

    async def events(self) -> Chunks:
        """The events of a stream, in the order that clients expect. A call comes in one piece, when it is whole."""
        begun = self._response("in_progress")
        yield self._event("response.created", {"response": begun})
        yield self._event("response.in_progress", {"response": begun})
        shown, rows = "", list[Json]()
        async for _, delta in self.exchange.answers:
            rows += self._rows(delta.logprobs)  # those of special tokens wait for a text
            if delta.content and not self.form.choice.forced:
                for event in self._said(delta.content, rows):
                    yield event
                shown, rows = shown + delta.content, []
        whole = await self.exchange.judged(self.whole)
        for index, item in enumerate(whole["output"]):
            of_item = self._called(index, item) if item["type"] == "function_call" else self._closed(item, shown, rows)
            for event in of_item:
                yield event
        yield self._event(f"response.{whole['status']}", {"response": whole})

    def _rows(self, rows: Sequence[Logprobs]) -> list[Json]:
        """Log-probabilities, if they were asked for."""
        found: list[Json] = chat_logprobs(self.form.text, rows)["content"] if self.form.logprobs else []
        return found

    def _said(self, text: str, rows: list[Json]) -> Iterator[Json]:
        """More of the message."""
        if not self._opened:
            self._opened = True
            item = {"output_index": 0, "item": self._message("in_progress", None)}
            yield self._event("response.output_item.added", item)
            yield self._event("response.content_part.added", self._place | {"part": _part("", [])})
        if text or rows:
            yield self._event("response.output_text.delta", self._place | {"delta": text, "logprobs": rows})

    def _closed(self, item: Json, shown: str, waiting: list[Json]) -> Iterator[Json]:
        """The end of the message, with the text that was not shown and the rows that still wait."""
        (part,) = item["content"]
        text, rows = part["text"], part["logprobs"]
        yield from self._said(text[len(shown) :], waiting)
        yield self._event("response.output_text.done", self._place | {"text": text, "logprobs": rows})
        yield self._event("response.content_part.done", self._place | {"part": part})
        yield self._event("response.output_item.done", {"output_index": 0, "item": item})

    def _called(self, index: int, item: Json) -> Iterator[Json]:
        place, said = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", {"output_index": index, "item": begun})
        yield self._event("response.function_call_arguments.delta", place | {"delta": said})
        whole = {"name": item["name"], "arguments": said}
        yield self._event("response.function_call_arguments.done", place | whole)
        yield self._event("response.output_item.done", {"output_index": index, "item": item})

    def _event(self, name: str, more: Json) -> Json:
        self.number += 1
        return {"type": name, "sequence_number": self.number} | more

    def _message(self, status: str, part: Json | None) -> Json:
        content = [] if part is None else [part]
        return {"id": self.item, "type": "message", "status": status, "role": "assistant", "content": content}

    def _response(self, status: str) -> Json:
        body = self.body
        wanted = None if body.text is None else body.text.format
        chosen = "auto" if body.tool_choice is None else body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.exchange.service.settings.name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": wanted.model_dump(by_alias=True, exclude_none=True) if wanted else {"type": "text"}},
            "tool_choice": chosen if isinstance(chosen, str) else chosen.model_dump(),
            "tools": [tool.model_dump() | {"strict": True} for tool in body.tools or ()],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
        }

    def _usage(self) -> Json:
        counts = self.exchange.usage()
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"],
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": counts["completion_tokens_details"]["reasoning_tokens"]},
            "total_tokens": counts["total_tokens"],
            **{name: counts[name] for name in ("steps", "forwards", "tokens_per_forward")},
        }


def _part(text: str, rows: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": rows}


def _call(id_: str, name: str, arguments: str) -> Json:
    said = {"call_id": id_, "name": name, "arguments": arguments}
    return {"id": f"fc_{secrets.token_hex(16)}", "type": "function_call", "status": "completed"} | said
