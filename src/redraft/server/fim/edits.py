"""Edits in Inception's form, chat-shaped: `POST /v1/edit/completions` and `POST /v1/apply/completions`.

edit     <|code_to_edit|> a region <|/code_to_edit|> in the last message is revised; what stands around it is kept
apply    <|original_code|> a text <|/original_code|> is written anew with a change: the canvas starts from it
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fastapi import Request, Response
from pydantic import Field

from redraft.operations.edit import ROOM
from redraft.server.fim.gap import count_tokens
from redraft.server.http.body import BOOKKEEPING, Str
from redraft.server.http.errors import ApiError, unsupported
from redraft.server.http.routing import answers, router_of_bodies
from redraft.server.http.service import note_prompts, service_of
from redraft.server.openai.chat import EARLIER, chat
from redraft.server.openai.exchange import aside, reply_with
from redraft.server.openai.fields import Chat, Prediction, Sampling, Slack, Strength, Turns
from redraft.server.openai.replies import ChatForm, Json, whole_answer
from redraft.server.openai.request_builder import RequestBuilder

router = router_of_bodies()

CURSOR = "<|cursor|>"


class EditBody(Sampling):
    """`POST /v1/edit/completions`."""

    inert = BOOKKEEPING | {"nextEdit"}

    messages: Turns = Field(description="the last one holds the tagged region")
    strength: Strength = None
    slack: Slack = None
    instruction: Str | None = Field(default=None, description="what to change; shown to the model as a user's turn")


@router.post("/v1/edit/completions", response_model=None)
@answers
async def edit(request: Request, body: EditBody) -> Response | Json:
    """Revise a region of a text; a stream has one piece."""
    if (body.n or 1) != 1:
        raise ApiError(400, f"n is {body.n}; an edit has one answer, so leave it out", param="n")
    if body.canvas is not None and body.canvas.stream:
        raise unsupported("canvas.stream", "the steps of an edit come from /v1/canvas; leave canvas.stream out")
    before, region, behind = region_of(body.messages[-1].text)
    text = before + region + behind
    note_prompts(request, [text])
    service, slack = service_of(request), body.slack
    builder = RequestBuilder(service, body)
    # The engine refuses a bound below the region; what is above it is the room that a rewritten region has.
    longest = await service.on_thread(request, count_tokens, builder.engine, region) + (slack or 0)
    room = ROOM if body.max_tokens is None else min(ROOM, body.max_tokens - longest)
    bound = body.max_tokens if body.max_tokens is not None and body.max_tokens < longest else None
    options = replace(builder.options(max_tokens=None, keeps_canvas=True), max_tokens=bound)
    done = await aside(
        request,
        lambda engine: engine.edit(
            text,
            (len(before), len(before) + len(region)),
            strength=body.strength,
            instruction=body.instruction,
            slack=slack,
            room=room,
            options=options,
        ),
    )
    tokens = builder.engine.text.encode(done.after, bos=False)  # no longer than a canvas
    answer = whole_answer(done.after, seed=done.seed, finish=done.finish, tokens=tokens, forwards=done.forwards)
    hints = [f"left as it was: {', '.join(done.left_out)}; say it in an edit of its own"] if done.left_out else []
    hints += [f"a guess: {', '.join(done.guesses)}"] if done.guesses else []
    form = ChatForm(builder.engine.text, hint="; ".join(hints))
    read = await service.on_thread(request, count_tokens, builder.engine, text)
    return reply_with(request, body, form, [answer], read, [EARLIER] * (len(body.messages) > 1))


@router.post("/v1/apply/completions", response_model=None)
@answers
async def apply(request: Request, body: Chat) -> Response | Json:
    """Write a text anew with a change; the canvas starts from the original."""
    _, original, _ = _parted(body.messages[-1].text, "original_code")
    if body.prediction is None:
        body = body.model_copy(update={"prediction": Prediction(content=original.removesuffix("\n"))})
    return await chat(request, body)


def region_of(text: str) -> tuple[str, str, str]:
    """What stands before the region, the region, and what stands behind it, without tags. Raises ApiError."""
    with suppress(ApiError):  # the region alone may come, too
        _, text, _ = _parted(text, "current_file_content")
    before, region, behind = _parted(text.replace(CURSOR, ""), "code_to_edit")
    return before, region.removesuffix("\n"), behind


def _parted(text: str, tag: str) -> tuple[str, str, str]:
    """What stands before a tag, in it without a line break at its beginning, and behind it. Raises ApiError. Without
    regular expressions, which look for the end anew from each beginning."""
    before, opened, rest = text.partition(f"<|{tag}|>")
    inside, closed, behind = rest.partition(f"<|/{tag}|>")
    if not (opened and closed):
        said = f"the last message has no <|{tag}|>…<|/{tag}|>; mark the text with them"
        raise ApiError(400, said, param="messages")
    return before, inside.removeprefix("\n"), behind
