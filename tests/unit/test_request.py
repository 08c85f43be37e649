"""Options become a policy: presets, sampling parameters honoured or refused by name, and nothing changed by default."""

from dataclasses import fields, replace

import pytest
from tests.helpers import tiny_config, tiny_model

from redraft.cli.main import build_parser
from redraft.config import CheckpointConfig, GenerationConfig, read_config
from redraft.diffusion.accept import AnyOf, Confidence, Gate, Margin
from redraft.diffusion.denoise import reference_policy
from redraft.diffusion.halt import EitherOf, StableAndConfident, Sure, UntilEnd
from redraft.diffusion.noise import SeededNoise
from redraft.diffusion.plan import Flow
from redraft.diffusion.presets import PRESETS
from redraft.diffusion.schedule import FixedCooling
from redraft.diffusion.shaping import Shaping
from redraft.engine.events import Block, Draft, Event
from redraft.engine.request import Options
from redraft.engine.resolve import build_request, preset_name
from redraft.engine.runner import run_alone
from redraft.errors import RequestError
from redraft.model.gemma import DiffusionGemma
from redraft.options import PRESET_NAMES, SeedCanvas, option_table
from redraft.weights.source import locate

PROMPT = [2, 17, 31, 44, 5, 9]
SHIPPED = GenerationConfig(max_new_tokens=32, max_denoising_steps=5, eos_token_ids=())


@pytest.fixture(scope="module")
def model() -> DiffusionGemma:
    return tiny_model(replace(tiny_config(), canvas_length=16))


def events(model: DiffusionGemma, options: Options) -> list[Event]:
    request = build_request(PROMPT, options, CheckpointConfig(model.config, SHIPPED))
    return list(run_alone(model, request, SeededNoise(request.seed)))


def tokens(told: list[Event]) -> list[int]:
    return [token for event in told if isinstance(event, Block) for token in event.tokens]


def test_default_options_are_the_reference(model: DiffusionGemma) -> None:
    policy = build_request(PROMPT, Options(), CheckpointConfig(model.config, SHIPPED)).policy
    assert policy == reference_policy(SHIPPED)
    assert policy.shaping == Shaping()


def test_presets_keep_a_checkpoints_own_settings() -> None:
    own = GenerationConfig(t_min=0.3, entropy_bound=0.2, confidence_threshold=0.01, max_denoising_steps=7)
    made = {name: preset.policy(own) for name, preset in PRESETS.items()}
    assert made["reference"] == reference_policy(own)
    assert made["fast"] == replace(made["reference"], halt=EitherOf((StableAndConfident(0, 0.01), Sure(0.4))))
    assert made["flow"] == replace(made["fast"], plan=Flow(nats=0.01))


@pytest.mark.parametrize(
    ("options", "canvas_length", "width"),
    [
        (Options(max_tokens=1), 256, 256),  # the reference's is the checkpoint's
        (Options(max_tokens=1, preset="fast"), 256, 16),
        (Options(max_tokens=16, preset="fast"), 256, 16),
        (Options(max_tokens=17, preset="fast"), 256, 32),
        (Options(max_tokens=65, preset="flow"), 256, 128),
        (Options(max_tokens=129, preset="fast"), 256, 256),
        (Options(max_tokens=500, preset="fast"), 256, 256),
        (Options(max_tokens=20, preset="fast"), 24, 24),  # no wider than the checkpoint's
        (Options(max_tokens=9, preset="fast"), 8, 8),
        (Options(max_tokens=1, preset="fast", canvas=40), 256, 40),  # chosen by the caller
        (Options(max_tokens=1, canvas=40), 256, 40),
    ],
)
def test_a_preset_other_than_the_reference_takes_the_narrowest_canvas_that_holds_the_answer(
    options: Options, canvas_length: int, width: int
) -> None:
    config = CheckpointConfig(replace(tiny_config(max_position_embeddings=2048), canvas_length=canvas_length), SHIPPED)
    assert build_request(PROMPT, options, config).width == width


@pytest.mark.parametrize(("preset", "canvas", "widths"), [("fast", None, [32, 32, 16]), ("fast", 32, [32] * 3)])
def test_later_canvases_are_no_wider_than_what_is_left_needs(
    preset: str, canvas: int | None, widths: list[int]
) -> None:
    wide = tiny_model(replace(tiny_config(), canvas_length=32))
    options = Options(seed=1, max_tokens=75, preset=preset, canvas=canvas, steps=1)
    request = build_request(PROMPT, options, CheckpointConfig(wide.config, SHIPPED))
    drafts = [event for event in run_alone(wide, request, SeededNoise(1)) if isinstance(event, Draft)]
    assert [len(draft.tokens) for draft in drafts] == widths


def test_ends_are_minded_by_every_preset_but_the_reference_unless_told_otherwise(model: DiffusionGemma) -> None:
    for preset, chosen, aware in (
        ("reference", None, False),
        ("reference", True, True),
        ("fast", None, True),
        ("fast", False, False),
        ("flow", None, True),
    ):
        options = Options(preset=preset, end_aware=chosen)
        request = build_request(PROMPT, options, CheckpointConfig(model.config, SHIPPED))
        assert request.end_aware is aware
        assert isinstance(request.policy.halt, UntilEnd) is aware


def test_rules_in_words_become_the_policy(model: DiffusionGemma) -> None:
    options = Options(accept=("confidence:0.7", "gate:2:margin"), cooling=9, steps=3)
    policy = build_request(PROMPT, options, CheckpointConfig(model.config, SHIPPED)).policy
    assert policy.accept == AnyOf((Confidence(0.7), Gate(2, Margin())))
    assert policy.schedule == FixedCooling(SHIPPED.t_min, SHIPPED.t_max, 9)
    assert policy.max_steps == 3


def test_the_command_line_knows_every_preset() -> None:
    assert tuple(PRESETS) == PRESET_NAMES
    for name in PRESETS:
        for command in ("generate", "eval"):
            assert build_parser().parse_args([command, "--preset", name]).preset == name


@pytest.mark.parametrize(
    "options",
    [
        Options(temperature=0.5),
        Options(temperature=0.0),
        Options(top_k=2),
        Options(top_p=0.05),
        Options(logit_bias=((7, 20.0),)),
        Options(bad_words=((7,), (8,), (9,))),
        Options(preset="fast"),
        Options(preset="flow"),
        Options(accept=("confidence:0.2",)),
        Options(cooling=1),
        Options(steps=3),
        Options(entropy_bound=5.0),
        Options(max_tokens=20),
    ],
    ids=lambda options: next(
        field.name for field in fields(Options) if getattr(options, field.name) != getattr(Options(), field.name)
    ),
)
def test_every_option_does_something(model: DiffusionGemma, options: Options) -> None:
    """Honour or refuse: whatever is taken changes what happens. `fast` needs a model that can be certain."""
    sure = options.preset is not None
    bias = options.logit_bias or (((7, 60.0),) if sure else ())
    base = Options(seed=1, logit_bias=bias if sure else ())
    assert events(model, replace(options, seed=1, logit_bias=bias)) != events(model, base)


def test_temperature_zero_samples_the_likeliest_and_leaves_the_schedule(model: DiffusionGemma) -> None:
    """Where a sample was accepted at temperature 0, the canvas shows the draft of that step."""
    policy = build_request(PROMPT, Options(temperature=0.0), CheckpointConfig(model.config, SHIPPED)).policy
    assert policy == replace(reference_policy(SHIPPED), shaping=Shaping(top_k=1))
    cold, warm = events(model, Options(seed=1, temperature=0.0)), events(model, Options(seed=1))
    first = [next(event for event in told if isinstance(event, Draft)) for told in (cold, warm)]
    assert first[0] == first[1], "the first reading knows nothing of samples"


def test_a_bias_decides_and_a_bad_word_is_never_said(model: DiffusionGemma) -> None:
    said = set(tokens(events(model, Options(seed=1))))
    assert set(tokens(events(model, Options(seed=1, logit_bias=((7, 60.0),))))) == {7}
    refused = events(model, Options(seed=1, bad_words=tuple((token,) for token in said)))
    shown = {token for event in refused if isinstance(event, Draft) for token in event.tokens}
    assert not said & shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(temperature=-1.0), "temperature is -1.0"),
        (Options(temperature=float("nan")), "temperature is nan"),
        (Options(temperature=1e-6), "temperature is 1e-06"),
        (Options(top_k=0), "top_k is 0"),
        (Options(temperature=0.0, top_k=-3), "top_k is -3"),
        (Options(top_p=0.0), "top_p is 0.0"),
        (Options(top_p=1.01), "top_p is 1.01"),
        (Options(logit_bias=((64, 1.0),)), "logit_bias names token id 64"),
        (Options(logit_bias=((7, 101.0),)), "logit_bias of token 7 is 101.0"),
        (Options(bad_words=((-1,),)), "bad_words names token id -1"),
        (Options(bad_words=((7, 8),)), r"bad_words holds \(7, 8\), 2 tokens"),
        (Options(bad_words=tuple((token,) for token in range(64))), "every token"),
        (Options(repetition_penalty=1.1), "repetition_penalty is 1.1; it is not supported"),
        (Options(presence_penalty=0.5), "presence_penalty is 0.5; it is not supported"),
        (Options(frequency_penalty=-0.5), "frequency_penalty is -0.5; it is not supported"),
        (Options(preset="turbo"), "preset is 'turbo'; known: reference, fast, flow"),
        (Options(preset="fats"), r"preset is 'fats'; known: reference, .*; did you mean 'fast'\?"),
        (Options(accept=("turbo",)), "names 'turbo'; known: entropy"),
        (Options(accept=("confidence:1.5",)), "confidence threshold is 1.5"),
        (Options(accept=("factor",), entropy_bound=0.1), "accept and entropy_bound were both given"),
        (Options(cooling=0), "cooling is 0"),
        (Options(causal=True, accept=("factor",)), "causal and accept were both given"),
        (Options(causal=True, preset="fast"), "causal and preset were both given"),
        (Options(causal=True, entropy_bound=0.2), "causal and entropy_bound were both given"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name_and_value(
    model: DiffusionGemma, options: Options, words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        build_request(PROMPT, options, CheckpointConfig(model.config, SHIPPED))


@pytest.mark.parametrize(
    ("options", "trained_for", "wanted"),
    [
        (Options(), "reference", "reference"),
        (Options(), "fast", "fast"),
        (Options(preset="reference"), "fast", "reference"),
        (Options(preset="flow"), "fast", "flow"),
        (Options(causal=True), "fast", "reference"),
        (Options(effort=0.5), "reference", "fast"),
        (Options(target_ms=9.0), "reference", "fast"),
        (Options(seed_canvas=SeedCanvas(pins=((0, 3),))), "flow", "fast"),
    ],
)
def test_the_default_preset_is_what_the_checkpoint_was_trained_for(
    options: Options, trained_for: str, wanted: str
) -> None:
    assert preset_name(options, replace(SHIPPED, preset=trained_for)) == wanted


def test_the_model_in_the_package_says_that_it_was_trained_for_fast() -> None:
    assert read_config(locate("nano-sudoku")).generation.preset == "fast"


def test_every_option_is_declared_once_with_help() -> None:
    told = list(option_table())
    assert {one.name for one in told} == {one.name for one in fields(Options)}
    assert [one.name for one in told if not one.help] == []
    flags = [one.flag for one in told if one.flag]
    assert len(flags) == len(set(flags))
