"""Fields that clients of other servers send unasked: without effect here, or taken where they ask for nothing.

A client of vLLM's or llama.cpp's often sends every setting that its user could have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redraft.server.http.body import BOOKKEEPING

INERT = BOOKKEEPING | {
    "backend_sampling",
    "cache_prompt",
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "id_slot",
    "min_keep",
    "mirostat_eta",
    "mirostat_tau",
    "n_keep",
    "repeat_last_n",
    "response_fields",
    "return_progress",
    "samplers",
    "timings_per_token",
    "xtc_threshold",
}
"""Bookkeeping, the order of samplers, and numbers of samplers that NEUTRAL keeps off."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0, 0.0),
    "typical_p": (1, 1.0),
    "typ_p": (1, 1.0),
    "repeat_penalty": (1, 1.0),
    "dynatemp_range": (0, 0.0),
    "xtc_probability": (0, 0.0),
    "dry_multiplier": (0, 0.0),
    "mirostat": (0,),
    "post_sampling_probs": (False,),
    "reasoning_format": ("auto", "deepseek"),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "include_stop_str_in_output": (False,),
    "add_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "allowed_token_ids": ([],),
    "priority": (0,),
    "stop_token_ids": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""The values at which each asks for nothing."""

INSTEAD = {
    f"guided_{kind}": f'send structured_outputs: {{"{kind}": …}}' for kind in ("json", "regex", "choice", "grammar")
}
"""What does the same here."""

ECHOED = frozenset(
    {
        "annotations",
        "cache_control",
        "citations",
        "id",
        "logprobs",
        "provider_specific_fields",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_items",
        "refusal",
        "thinking_blocks",
    }
)
"""Of messages, their parts and calls: what libraries add to a reply, and send back with the next turn. Templates show a
model none of it."""
