"""A training recipe: what to train, on what, for how long. Read from TOML, checked once, frozen.

    start       a checkpoint to start from; without [model] its shape, tokenizer and sampler settings are kept
    [model]     shape of the network
    [data]      where examples come from, and how they are laid out on canvases
    [objective] what is scored, and on which noise
    [lora]      train small matrices beside the large ones, which stay as they are
    [train]     steps, batch, optimizer, seed
    [sampling]  what generation_config.json will say
    [[stages]]  other data or another objective from a step on

An unknown key is refused by name, so a misspelt option can never be ignored.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec

from redraft.config import MOST_THREADS, GenerationConfig, LayerConfig, ModelConfig, RopeConfig
from redraft.errors import ConfigError, RecipeError, did_you_mean, shown_number
from redraft.files import read_small, recipes, shipped
from redraft.images.config import TINY_VISION
from redraft.tasks import task
from redraft.tune.vocabulary import VOCABULARIES

LORA_PARTS = ("attention", "mlp", "experts", "self_conditioning")
EOS_TOKEN_IDS = (1, 5)  # `<eos>` and the turn end of the tokenizer that `tune.vocabulary` builds
LEAST_VOCAB = 6  # its special tokens, which the config names


class ModelRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes in elements; `layers` lists the kinds from first to last, "sliding" or "full", the last one full."""

    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_heads: int
    num_experts: int
    top_k_experts: int
    layers: tuple[str, ...]
    head_dim: int = 32
    full_head_dim: int = 64
    num_kv_heads: int = 2
    num_full_kv_heads: int = 1
    window: int = 64
    max_positions: int = 512
    canvas_length: int = 32
    vocabulary: str = "records"


class DataRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each of the first four maps a source to its share of every batch; shares are relative.

    tasks        built-in tasks by name
    files        JSON lines, one conversation or one prompt and response a line
    folders      plain text, file by file
    generators   "file.py:function", called with a split and a seed, giving rows as in a JSON-lines file
    held_out     one row of a file in this many is kept for the probes; 0 keeps none
    turns        "last" or "all": which answers of a conversation are scored
    fit_share    share of examples on the narrowest canvas that holds the answer
    fit_step     widths of such canvases are multiples of this
    widths       canvas widths of the others, one of them in each step; if empty, the model's canvas_length
    most_blocks  most canvases of an answer
    pack_tokens  clean sequences share a line of up to this many tokens; 0 gives each its own line
    length_step  lengths are rounded up to this many tokens to form batches: more means more padding, and fewer and
                 larger batches
    merge_rows   batches of several lengths and widths are joined, two by two, while each time that adds at most this
                 many token rows of padding. For GPUs, where each batch costs its launches
    """

    tasks: dict[str, float] = {}
    files: dict[str, float] = {}
    folders: dict[str, float] = {}
    generators: dict[str, float] = {}
    held_out: int = 20
    turns: str = "last"
    fit_share: float = 0.0
    fit_step: int = 16
    widths: tuple[int, ...] = ()
    most_blocks: int = 1
    pack_tokens: int = 0
    length_step: int = 64
    merge_rows: int | msgspec.UnsetType = msgspec.UNSET  # unset, so that a run older than this key can be resumed

    @property
    def shares(self) -> dict[str, float]:
        """Every source and its share."""
        return {**self.tasks, **self.files, **self.folders, **self.generators}


class ObjectiveRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is scored, and on which noise.

    causal_weight      of the next-token loss; 0 does not compute it
    causal_share       share of one-canvas answers on which the causal mode is scored
    tell_prompt        whether the causal mode is also scored on prompts
    self_conditioning  share of canvases that see a guess
    draws              corruptions of every canvas after one clean pass
    pinned_share       share of answers with known parts (Sudoku clues, the keys of a record) that have them pinned
    plausible          share of the noise that is drawn from the canvas itself: wrong tokens that look right
    rolled             share of the canvases with a guess that take one step of the sampler from it
    own                share of the canvases that start from pure noise and take 0 to `own_steps` steps of the sampler
    correct_from       step from which `plausible`, `rolled` and `own` apply
    leave_one_out      the logits of a position mean a belief that ignores the position's own token
    certainty          weight of the entropy of correct positions
    """

    causal_weight: float = 1.0
    causal_share: float = 1.0
    tell_prompt: bool = True
    self_conditioning: float = 0.5
    draws: int = 1
    pinned_share: float = 0.0
    plausible: float = 0.0
    rolled: float = 0.0
    own: float = 0.0
    own_steps: int = 0
    correct_from: int = 0
    leave_one_out: bool = False
    certainty: float = 0.0


class LoraRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Adapters of a rank, scaled by alpha / rank, on `parts`: attention, mlp, experts, self_conditioning."""

    rank: int = 16
    alpha: float = 32.0
    parts: tuple[str, ...] = LORA_PARTS


class TrainRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `encode_steps` train the causal mode alone; then `steps` train both losses together.

    The learning rate falls along a cosine from the warm-up to the end. With `decay_steps` it stays until that many
    steps before the end, then falls linearly. `most_rows` bounds the token rows of one forward; a larger step is taken
    in parts. `recompute` keeps no layer's inner values for the backward pass. `compile` compiles the layers: that takes
    a C++ compiler and a minute, and then a small model's step takes two thirds of the time on a CPU. `bfloat16`
    multiplies matrices in that format; weights, norms and losses stay float32. `device` is "cpu", "cuda" or "cuda:N".
    `workers` is the number of processes that prepare samples of the next steps; with 0 the trainer prepares them
    between steps. `tower` trains the start's vision tower, too, which is frozen otherwise.
    """

    steps: int
    batch_size: int
    encode_steps: int = 0
    lr: float = 2e-3
    final_lr: float = 1e-4
    warmup: int = 100
    decay_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    most_rows: int = 0
    recompute: bool = False
    compile: bool | msgspec.UnsetType = msgspec.UNSET  # unset, so that a run that is older than this key can be resumed
    tower: bool | msgspec.UnsetType = msgspec.UNSET  # likewise
    bfloat16: bool = False
    device: str = "cpu"
    seed: int = 0
    threads: int = 2
    workers: int = 0
    probe_every: int = 500
    probe_examples: int = 40
    save_every: int = 250


class StageRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What applies from a step on, counted from 0: other data, another objective, or both, each as a whole."""

    from_step: int
    data: DataRecipe | None = None
    objective: ObjectiveRecipe | None = None


class SamplingRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the reference sampler shipped with the result."""

    max_new_tokens: int = 32
    max_denoising_steps: int = 16
    entropy_bound: float = 0.1
    confidence_threshold: float = 0.005
    # Unset by default, so that a run that is older than this key can be resumed.
    preset: str | msgspec.UnsetType = msgspec.UNSET


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One training run. Without `model` there is a `start`; without `sampling` the start's settings, if it has any."""

    name: str
    data: DataRecipe
    train: TrainRecipe
    start: str = ""
    model: ModelRecipe | None = None
    objective: ObjectiveRecipe = ObjectiveRecipe()
    lora: LoraRecipe | None = None
    sampling: SamplingRecipe | None = None
    stages: tuple[StageRecipe, ...] = ()

    def at(self, step: int) -> Recipe:
        """The recipe at a step: stages that have started are applied, later ones are left out."""
        now = msgspec.structs.replace(self, stages=())
        for stage in self.stages:
            if stage.from_step <= step:
                data, objective = stage.data or now.data, stage.objective or now.objective
                now = msgspec.structs.replace(now, data=data, objective=objective)
        return now


def _probable_key(message: str) -> str:
    """The key that was probably meant, where a message names one that does not exist."""
    found = re.search(r"unknown field `([^`]*)`", message)
    tables = (Recipe, StageRecipe, ModelRecipe, DataRecipe, ObjectiveRecipe, LoraRecipe, TrainRecipe, SamplingRecipe)
    return "" if found is None else did_you_mean(found[1], {key for table in tables for key in table.__struct_fields__})


def read_recipe(path: Path) -> Recipe:
    """Parse and check a recipe: a file, or the name of one that comes with redraft.

    Raises RecipeError naming the key and what it must be.
    """
    try:
        named = recipes() / f"{path}.toml"
        path = named if len(path.parts) == 1 and named.is_file() and not path.exists() else shipped(path)
        text = read_small(path, _MOST_CHARS)
        if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
            raise ValueError(f"a line has over {_MOST_DOTS} dots")  # a key of many parts takes their square to read
        recipe = msgspec.toml.decode(text, type=Recipe)
    except OSError as error:
        raise RecipeError(
            f"{path} cannot be read ({error.strerror}); pass a recipe file, or a name of `redraft tune --help`"
        ) from None
    except (msgspec.ValidationError, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: {error}; see docs/tuning.md for the keys{_probable_key(str(error))}") from None
    check(recipe)
    try:
        if recipe.model is not None:
            model_config(recipe.model, vocab_size=LEAST_VOCAB)
    except ConfigError as error:
        raise RecipeError(f"[model] {error}") from None
    try:
        sampling = generation_config(recipe)
    except ConfigError as error:
        raise RecipeError(f"[sampling] {error}") from None
    if recipe.model is not None and sampling.max_new_tokens >= recipe.model.max_positions:
        raise RecipeError(
            f"[sampling] max_new_tokens is {sampling.max_new_tokens}; prompt and answer share the context:"
            f" it must be below [model] max_positions ({recipe.model.max_positions})"
        )
    return recipe


def model_config(shape: ModelRecipe, vocab_size: int) -> ModelConfig:
    """The network's config."""
    sliding = LayerConfig(shape.window, shape.num_kv_heads, shape.head_dim, RopeConfig(10_000.0))
    full = LayerConfig(None, shape.num_full_kv_heads, shape.full_head_dim, RopeConfig(1_000_000.0, 0.25))
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        moe_intermediate_size=shape.moe_intermediate_size,
        num_heads=shape.num_heads,
        num_experts=shape.num_experts,
        top_k_experts=shape.top_k_experts,
        layers=tuple(full if kind == "full" else sliding for kind in shape.layers),
        max_positions=shape.max_positions,
        canvas_length=shape.canvas_length,
        eos_token_ids=EOS_TOKEN_IDS,
        vision=TINY_VISION,
        root={"boi_token_id": 0, "eoi_token_id": 0, "image_token_id": vocab_size - 1},
    )


def generation_config(recipe: Recipe) -> GenerationConfig:
    """The generation_config.json of the trained checkpoint, by the recipe."""
    wanted = recipe.sampling or SamplingRecipe()
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not msgspec.UNSET}
    return GenerationConfig(**given, eos_token_ids=EOS_TOKEN_IDS)


def check(recipe: Recipe) -> None:
    """Raise RecipeError for values that are out of range or contradict each other."""
    if recipe.model is None and not recipe.start:
        raise RecipeError("the recipe has neither start nor [model]; name a checkpoint to begin with, or a shape")
    if recipe.model is not None:
        _check_model(recipe.model)
    if recipe.lora is not None:
        _check_lora(recipe, recipe.lora)
    for table, part in (("data", recipe.data), ("objective", recipe.objective), ("train", recipe.train)):
        for key, (low, high) in _RANGES[table].items():
            given = getattr(part, key)
            for value in () if given is msgspec.UNSET else given if isinstance(given, tuple) else (given,):
                if not low <= value <= high:
                    most = _HIGH.get(high, f"{high:.0f}")
                    limit = f"from {low:g} to {most}" if high < _NUMBER else f"at least {low:g}"
                    raise RecipeError(f"[{table}] {key} is {shown_number(value)}; it must be {limit}")
    _check_data(recipe.data)
    for key in ("plausible", "rolled", "own"):
        if recipe.objective.leave_one_out and getattr(recipe.objective, key):
            raise RecipeError(f"[objective] leave_one_out counts on uniform noise, and {key} is another; leave one out")
    if recipe.objective.own_steps and not recipe.objective.own:
        raise RecipeError(
            f"[objective] own_steps is {recipe.objective.own_steps} and own is 0: no canvas would go them;"
            " give own a share, such as 0.5, or leave own_steps out"
        )
    if not re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]?))?", recipe.train.device):
        must = 'it must be "cpu", "cuda" or "cuda:N", with N from 0 to 99'
        raise RecipeError(f"[train] device is {recipe.train.device!r:.99}; {must}")
    if recipe.train.decay_steps > recipe.train.steps:
        raise RecipeError(f"[train] decay_steps is {recipe.train.decay_steps}; it must be at most steps")
    steps = [stage.from_step for stage in recipe.stages]
    if steps != sorted(set(steps)) or min(steps, default=1) < 1:
        raise RecipeError(f"[[stages]] from_step are {steps}; each must be above the one before, the first above 0")
    for step in steps:
        check(recipe.at(step))


def _check_model(shape: ModelRecipe) -> None:
    wrong = [kind for kind in shape.layers if kind not in ("sliding", "full")]
    if wrong or shape.layers[-1:] != ("full",) or len(shape.layers) > _MOST_LAYERS:
        must = f'must hold "sliding" and "full", end in "full" and have at most {_MOST_LAYERS}'
        raise RecipeError(f"[model] layers is {list(shape.layers)!s:.200}; it {must}")
    for key, value in msgspec.structs.asdict(shape).items():
        if isinstance(value, int) and not 1 <= value <= _MOST_WIDE:
            raise RecipeError(f"[model] {key} is {shown_number(value)}; it must be from 1 to {_MOST_WIDE}")
    for name in ("num_kv_heads", "num_full_kv_heads"):
        heads = getattr(shape, name)
        if shape.num_heads % heads:
            raise RecipeError(f"[model] {name} is {heads}; it must divide num_heads ({shape.num_heads})")
    if shape.vocabulary not in VOCABULARIES:
        raise RecipeError(f"[model] vocabulary is {shape.vocabulary!r}; known: {', '.join(VOCABULARIES)}")


def _check_lora(recipe: Recipe, lora: LoraRecipe) -> None:
    if not recipe.start or recipe.model is not None:
        raise RecipeError("[lora] adapts a trained model: give start, and no [model]")
    if not 1 <= lora.rank <= _MOST_RANK or not 0 < lora.alpha < math.inf:
        said = f"[lora] rank is {shown_number(lora.rank)} and alpha {lora.alpha}"
        raise RecipeError(f"{said}; rank must be from 1 to {_MOST_RANK}, alpha above 0")
    wrong = [part for part in lora.parts if part not in LORA_PARTS]
    if wrong or not lora.parts:
        raise RecipeError(f"[lora] parts is {list(lora.parts)}; known: {', '.join(LORA_PARTS)}")


def _check_data(data: DataRecipe) -> None:
    for name in data.tasks:
        task(name)
    for name, share in data.shares.items():
        if not 0 < share <= _MOST_SHARE:
            raise RecipeError(f"[data] the share of {name} is {share}; it must be above 0, at most {_MOST_SHARE:g}")
    if not data.shares:
        raise RecipeError("[data] names no source; give at least one task, file, folder or generator")
    if data.turns not in ("last", "all"):
        raise RecipeError(f'[data] turns is {data.turns!r}; it must be "last" or "all"')


_HIGH = {math.nextafter(1, 0): "below 1"}
_NUMBER = math.nextafter(math.inf, 0)
_SHARE, _COUNT, _LARGE = (0, 1), (1, 2**31 - 1), (0, 2**31 - 1)
_MOST_SHARE, _MOST_WEIGHT, _MOST_LAYERS, _MOST_RANK = 1e9, 1e9, 2**10, 2**14
_MOST_CHARS, _MOST_DOTS = 2**16, 500
"""Of a recipe, and of one of its lines."""
_MOST_WIDE = 2**20  # of a model's sizes, of a canvas, of samples a step: more than any memory holds
_BELOW_ONE = (0, math.nextafter(1, 0))
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "data": {
        "held_out": _LARGE,
        "fit_share": _SHARE,
        "widths": (1, _MOST_WIDE),
        "most_blocks": (1, _MOST_WIDE),
        "pack_tokens": _LARGE,
        "fit_step": _COUNT,
        "length_step": _COUNT,
        "merge_rows": _LARGE,
    },
    "objective": {
        **dict.fromkeys(("causal_share", "self_conditioning", "pinned_share", "plausible", "rolled", "own"), _SHARE),
        **dict.fromkeys(("causal_weight", "certainty"), (0, _MOST_WEIGHT)),
        "draws": (1, 1024),
        "own_steps": (0, 48),  # as many as the released sampler takes
        "correct_from": _LARGE,
    },
    "train": {
        **dict.fromkeys(("steps", "save_every", "probe_every", "probe_examples"), _COUNT),
        "batch_size": (1, _MOST_WIDE),
        **dict.fromkeys(("encode_steps", "warmup", "decay_steps", "seed", "most_rows"), _LARGE),
        "lr": (1e-12, 1),  # AdamW moves a weight by about that much a step
        "final_lr": (0, 1),
        "clip": (1e-12, _NUMBER),
        "weight_decay": (0, _NUMBER),
        "threads": (1, MOST_THREADS),
        "workers": (0, MOST_THREADS),
        "betas": _BELOW_ONE,
        "ema": _BELOW_ONE,
    },
}
