"""Conditioning a canvas on its text being in a language, exactly.

A step gives every position a distribution of its own. Of all token strings that they make together, only those of the
language count. Messages from either side say how much of that there is (`forward_backward.py`). From them come

    bias     nats per (position, class): p · exp(bias) are the exact marginals of the strings that count. Entropy,
             acceptance and samples are read from these
    draft    the likeliest string that counts, as a whole; the only thing that may be emitted, with
    draw     one string in proportion to its probability

Samples or argmaxes taken position by position are strings of the language only by luck, and are never emitted.

Classes are reduced where the logits are. Messages are passed on the host, or there, too, if there are kernels for it
(`condition/device_messages.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch.nn import functional as F

from redraft.constraints.compile.automaton import FAR
from redraft.constraints.condition.device_messages import BestPath, device_messages
from redraft.constraints.condition.edge_layout import CACHED, NONE, EdgeLayout, Reals, Weights
from redraft.constraints.condition.forward_backward import (
    BIAS_OF_NONE,
    Gates,
    Messages,
    Open,
    best_paths,
    log_messages,
    scaled_messages,
)
from redraft.errors import ConstraintError
from redraft.model.gpu.automata import ConditionKernels, Shift
from redraft.shapes import Float, Int, Tensor

FAINTEST = -80.0
MOST_ON_DEVICE = 2**18
"""Merged edges of a language whose messages are passed on a device: those of a canvas take up to a gigabyte there."""


@dataclass(frozen=True)
class Projection:
    """What is left of a constraint for one canvas.

    `state` is the automaton's after all blocks before; `left` and `least` count the tokens that the answer may and must
    still have, the end token not among them. `kernels` do the work where the logits are, if that is not the host.
    """

    layout: EdgeLayout
    state: int
    left: int
    least: int = 0
    kernels: ConditionKernels | None = field(default=None, kw_only=True)

    def __call__(self, log_p: Float[Tensor, "canvas vocab"]) -> Projected:
        """Condition log-probabilities on the language. Raises ConstraintError if nothing is left of it."""
        weights, gates = Weights(self.layout, log_p), self.gates(len(log_p))
        small = len(self.layout.merged.src) <= MOST_ON_DEVICE
        if self.kernels is not None and log_p.device.type != "cpu" and small:
            return DeviceProjected(
                self, weights, *device_messages(self.kernels, weights, self.state, gates), self.kernels.shift
            )
        messages = scaled_messages(self.layout, weights, self.state, gates)
        if messages is None:
            messages = log_messages(self.layout, weights, self.state, gates, self.layout.merged)
        return Projected(self, weights, messages)

    def log_messages(self, log_p: Float[Tensor, "canvas vocab"]) -> Projected:
        """The plain twin of a call."""
        weights = Weights(self.layout, log_p)
        return Projected(self, weights, log_messages(self.layout, weights, self.state, self.gates(len(log_p))))

    def allowed(self, emitted: int) -> Open:
        """States that may be reached after `emitted` tokens of the canvas so that the answer can still be completed."""
        a, left, least = self.layout.automaton, self.left - emitted, self.least - emitted
        found = (self.layout.fewest(least) if least > 0 else a.to_end) <= left
        found[a.end] = least < 0 or self.least == 0
        return found

    def gates(self, width: int) -> Gates:
        """What may be passed on a canvas of that width."""
        decided = self.left >= width and self.least == 0
        return Gates(self.allowed(width), None if decided else self.allowed)

    def ends(self, width: int) -> Open:
        """States at the end of a canvas of that width behind which the answer may be over."""
        fits = self.least <= width <= self.left
        found = np.asarray(self.layout.automaton.accepts & fits)
        found[-1] = self.allowed(width)[-1]
        return found

    def after(self, tokens: Sequence[int]) -> Projection:
        """What is left when some tokens have been emitted, the end token not among them."""
        state, count = self.layout.automaton.after(self.state, tokens), len(tokens)
        return replace(self, state=state, left=self.left - count, least=max(0, self.least - count))

    @property
    def is_over(self) -> bool:
        """Whether the answer is whole and nothing could follow it."""
        return self.layout.automaton.is_over(self.state)

    def check_pins(self, width: int, pins: Sequence[tuple[int, int]]) -> None:
        """Raise ConstraintError if no answer has these (position, token) in a first canvas of that width."""
        a, ways, gates, held = self.layout.automaton, self.layout.merged, self.gates(width), dict(pins)
        found = np.arange(a.states) == self.state
        for i in range(width):
            src, dst = ways.src, ways.dst
            if i in held:
                among = a.cls == a.class_of[held[i]]
                src, dst = a.src[among], a.dst[among]
            ahead = np.zeros_like(found)
            ahead[dst[found[src]]] = True
            found = ahead if gates.inside is None else ahead & gates.inside(i + 1)
        if not (found & gates.end).any():
            raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")

    def check(self) -> None:
        """Raise ConstraintError if no answer of the language has as many tokens as are left, or it cannot be found."""
        if self.allowed(0)[self.state]:
            return
        fewest = int(self.layout.automaton.to_end[self.state])
        if fewest > self.left and fewest < FAR:
            raise ConstraintError(
                f"max_tokens leaves {self.left} tokens and the shortest valid answer has {fewest}; raise it"
            )
        raise ConstraintError(
            f"no valid answer has {self.least} to {self.left} tokens; lower min_tokens or raise max_tokens"
        )


@dataclass(frozen=True)
class OnceProjection(Projection):
    """What conditions the one canvas of an answer: behind it nothing is left to condition, and the answer is whole."""

    def after(self, tokens: Sequence[int]) -> OnceProjection:
        """The same."""
        return self

    @property
    def is_over(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, eq=False)
class Projected:
    """What came of one canvas."""

    projection: Projection
    weights: Weights
    messages: Messages

    @property
    def log_p(self) -> Float[Tensor, "canvas vocab"]:
        """What was conditioned."""
        return self.weights.log_p

    @property
    def log_total(self) -> float:
        """Log-probability that independent samples of all positions would have been valid."""
        return self.messages.log_total

    @property
    def fixed(self) -> int:
        """No position: all are weighed anew at every step."""
        return 0

    @property
    def doubt(self) -> float:
        """Nats that the draft is short of certain: -log of its probability among all valid strings, whatever stands
        behind its end."""
        a, (states, classes) = self.projection.layout.automaton, self.path
        length = next((i for i, state in enumerate(states) if state == a.end), len(classes))
        return max(0.0, self.log_total - float(self.scores[:length].sum()) - float(self.weights.behind[length:].sum()))

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities of the conditioned distributions: with the bias of each token's class."""
        layout, log_p, live = self.projection.layout, self.log_p, self.messages.live
        bias = torch.as_tensor(self.messages.bias[:live]).to(log_p)
        shifted = bias.index_select(1, layout.class_of(log_p.device)).add_(log_p[:live])
        # Below this a float32 probability is subnormal: worth nothing, and many times slower to compute with.
        F.threshold(shifted, FAINTEST, BIAS_OF_NONE, inplace=True)
        if live == len(log_p):
            return shifted
        found = torch.full_like(log_p, BIAS_OF_NONE)
        found[:live] = shifted
        found[live:, layout.behind] = torch.log_softmax(log_p[live:, layout.behind], -1).clamp_min(BIAS_OF_NONE)
        return found

    @cached_property
    def bests(self) -> Reals:
        """Log-weight of the best way into each state at the boundaries that matter (`best_paths`)."""
        projection, weights = self.projection, self.weights
        return best_paths(projection.layout, weights, projection.state, projection.gates(len(weights)))

    @cached_property
    def path(self) -> tuple[list[int], list[int]]:
        """The likeliest valid string: states at the boundaries that matter, the class at each position between them."""
        return self._best_path(self.projection.allowed(len(self.weights)))

    @cached_property
    def scores(self) -> Reals:
        """The log-probability of the likeliest token of each class on that path."""
        classes = self.path[1]
        return self.weights.best[np.arange(len(classes)), classes]

    @cached_property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest valid string."""
        return self._spell(self.path[1])

    def finished(self) -> Int[Tensor, "canvas"] | None:
        """The likeliest string that ends the answer within this canvas; None if no valid one does."""
        try:
            return self._spell(self._best_path(self.projection.ends(len(self.weights)))[1])
        except ConstraintError:
            return None

    def draw(self, uniform: Float[Tensor, "canvas"]) -> Int[Tensor, "canvas"]:
        """One valid string in proportion to its probability, each token by its position's number in [0, 1) and by what
        may still follow it."""
        layout, edges = self.projection.layout, self.projection.layout.edges.by_source
        self.weights.upto(len(self.weights))
        beta, state, tokens = np.asarray(torch.as_tensor(self.messages.beta).cpu()), self.projection.state, list[int]()
        order, present, at = layout.tokens
        stops = np.append(at[1:], len(order))
        for i, number in enumerate(uniform.tolist()):
            out = slice(layout.outgoing[state], layout.outgoing[state + 1])
            ahead = beta[min(i + 1, self.messages.live)][edges.dst[out]]
            edge, rest = _pick(self.weights.mass[i, edges.cls[out]] + ahead, number)
            label = int(np.searchsorted(present, edges.cls[out][edge]))
            members = order[at[label] : stops[label]]
            tokens.append(int(members[_pick(self.log_p[i, members].double().cpu().numpy(), rest)[0]]))
            state = int(edges.dst[out][edge])
        return torch.tensor(tokens, device=self.log_p.device)

    def forced(self) -> list[bool]:
        """Per position, whether the draft is another token than the likeliest before the language had its say."""
        return list((self.draft != self.log_p.argmax(-1)).tolist())

    def log_mass(self, tokens: Sequence[int]) -> list[float]:
        """At each of the first positions, the log of the probability that the model gave to all tokens with which the
        answer could still be completed, behind the tokens before it: how far it agrees with the constraint."""
        layout, edges = self.projection.layout, self.projection.layout.edges.by_source
        self.weights.upto(len(tokens))
        found, state = [], self.projection.state
        for i, token in enumerate(tokens):
            out = slice(layout.outgoing[state], layout.outgoing[state + 1])
            allowed = self.projection.allowed(i + 1)[edges.dst[out]]
            mass = self.weights.mass[i, np.unique(edges.cls[out][allowed])]
            peak = mass.max(initial=NONE)
            # Probabilities of a softmax in float32 add up to a little more than 1.
            found.append(min(0.0, float(peak + np.log(np.exp(mass - peak).sum()))))
            state = layout.automaton.after(state, [token])
        return found

    def _best_path(self, ends: Open) -> tuple[list[int], list[int]]:
        layout, a, bests, best = self.projection.layout, self.projection.layout.automaton, self.bests, self.weights.best
        # Where the paths were not followed to the canvas's end, all that count have ended.
        whole = len(bests) > len(best)
        final = np.where(ends if whole else np.arange(a.states) == a.end, bests[-1], NONE)
        state = int(final.argmax())
        if final[state] < NONE / 2:
            raise ConstraintError("no valid answer is left for this canvas; its pins contradict the constraint")
        states, classes = [state], []
        for i in range(len(bests) - 2, -1, -1):
            begin, stop = layout.incoming[state], layout.incoming[state + 1]
            edge = begin + int((bests[i][a.src[begin:stop]] + best[i, a.cls[begin:stop]]).argmax())
            state = int(a.src[edge])
            states.append(state)
            classes.append(int(a.cls[edge]))
        return states[::-1], classes[::-1]

    def _spell(self, classes: list[int]) -> Int[Tensor, "canvas"]:
        """The likeliest token of each position's class, and of the tail's behind them."""
        layout, log_p = self.projection.layout, self.log_p[: len(classes)]
        if log_p.device.type == "cpu" and log_p.numel() > CACHED:
            order, present, at = layout.tokens
            ends = np.append(at[1:], len(order))
            values, labels = log_p.numpy(), np.searchsorted(present, classes)
            kinds = [order[at[label] : ends[label]] for label in labels]
            best = torch.tensor([int(kind[values[i, kind].argmax()]) for i, kind in enumerate(kinds)])
        else:
            labels_there = torch.tensor(classes, device=log_p.device)
            best = log_p.masked_fill(layout.class_of(log_p.device) != labels_there[:, None], -torch.inf).argmax(-1)
        if len(classes) == len(self.log_p):
            return best
        behind = torch.tensor(layout.behind, device=log_p.device)
        return torch.cat([best, behind[self.log_p[len(classes) :, layout.behind].argmax(-1)]])


@dataclass(frozen=True, eq=False)
class DeviceProjected(Projected):
    """The same where messages were passed on the logits' own device. What nobody asks for stays there."""

    best_path: BestPath
    shift: Shift

    def shifted(self) -> Float[Tensor, "canvas vocab"]:
        """Log-probabilities of the conditioned distributions, in one pass."""
        class_of, bias = self.projection.layout.class_of(self.log_p.device), torch.as_tensor(self.messages.bias)
        return self.shift(self.log_p, class_of, bias, FAINTEST, BIAS_OF_NONE)

    @cached_property
    def bests(self) -> Reals:
        """The best paths into all states, brought to the host, and the weights with them."""
        self.weights.upto(len(self.weights))
        return np.asarray(self.best_path.best.cpu())

    @property
    def path(self) -> tuple[list[int], list[int]]:
        """As it was found there."""
        return self.best_path.states, self.best_path.classes

    @property
    def scores(self) -> Reals:
        """As they were found there."""
        return self.best_path.scores

    @property
    def draft(self) -> Int[Tensor, "canvas"]:
        """The likeliest valid string, still there."""
        return self.best_path.draft


def _pick(log_weights: Reals, uniform: float) -> tuple[int, float]:
    """An index in proportion to the exponentials, by a number in [0, 1), and where in the index's share that lies."""
    shares = np.exp(log_weights - log_weights.max())
    cumulated = shares.cumsum()
    at = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    rest = (uniform * cumulated[-1] - cumulated[at] + shares[at]) / shares[at]
    return at, float(np.clip(rest, 0.0, np.nextafter(1.0, 0.0)))
