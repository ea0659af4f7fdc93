"""A model of the same architecture with few layers and narrow widths, from the keys of its Hugging Face config.

A key says by its name what it counts (`_RULES`). What is counted belongs to a group, which is made small as a whole:
widths are divided by one factor and heads by another, so that products that were equal stay equal. Which sizes fit each
other only the model knows, so they are tried (`shrunk`).
"""

import copy
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Config = Any
"""A `transformers.PretrainedConfig`."""

Limits: TypeAlias = Mapping[str, int]
"""Group -> the most that a small config has of what is counted there; groups that are left out stay as they are."""

TRIED: Mapping[str, tuple[int, ...]] = {
    "layers": (2, 4, 8),
    "vocabulary": (256,),
    "experts": (4, 8),
    "widths": (16, 32, 64, 128),
    "positions": (128,),
    "images": (32, 64, 128),
    "windows": (32,),
    "choices": (2,),
}
"""Group -> limits that are tried, the smallest first. That of widths is the width of a head."""

HEADS = 4
FRAMES = 32
"""Positions of frames of audio."""
FILTERS = 8
"""Channels of the first of several stages, each twice as wide as the one before."""

_HIDDEN = (
    "hidden_size", "d_model", "n_embd", "hidden_sizes", "embed_dim", "embed_dims", "dim", "dims", "hidden_dim",
    "decoder_hidden_size", "encoder_hidden_size", "embedding_size", "model_dim", "embedding_dim", "hidden_channels",
)  # fmt: skip
_NOT_WIDTHS = r"(?:num|in|out|image|input)_channels|.*kernel.*|.*dim_ratio|.*_ratio"
_TOKEN = r".*_token_id|.*_token_index|.*_token_ids|(?:image|video|audio)_token"
_LAYERS = r"(?:num_|n_)?(?:\w+_)?(?:layers?|blocks|depth)|depths|num_\w*layers_\w+|n_blocks"
_HEAD_WIDTH = r"head_dim|d_kv|kv_channels|attention_head_size|.*_head_dim|.*d_head"


def shrunk(config: Config, fits: Callable[[Config, bool], bool]) -> Config:
    """The smallest config of the same class that `fits`.

    At first everything is small, with wider and wider heads. If none of these fits, group after group is made small,
    and left as it was where that does not fit. `fits(config, whole)`: whether the model runs; unless `whole`, when some
    sizes are still those of the given config, it is enough that a model which is too large to run can be built.
    """
    smallest = {group: limits[0] for group, limits in TRIED.items()}
    for width in TRIED["widths"]:
        found = _fitting(config, smallest | {"widths": width}, fits, whole=True)
        if found is not None:
            return found
    kept: dict[str, int] = {}
    best = copy.deepcopy(config)
    for group, limits in TRIED.items():
        for limit in limits:
            found = _fitting(config, kept | {group: limit}, fits, whole=False)
            if found is not None:
                kept[group], best = limit, found
                break
    return best


def _fitting(config: Config, limits: Limits, fits: Callable[[Config, bool], bool], whole: bool) -> Config | None:
    """The config within these limits; None if its class does not take it, or it does not fit."""
    try:
        made = smaller(config, limits)
    except Exception:  # whatever the config's class raises for values that it does not take
        return None
    return made if fits(made, whole) else None


def smaller(config: Config, limits: Limits, widths: Mapping[int, int] | None = None) -> Config:
    """A config of the same class within `limits`; `widths`: what widths of other parts became, which it may name too.

    Raises whatever the config's class raises for values that it does not take.
    """
    nested = {name: value for name in _names(config) if _is_config(value := getattr(config, name, None))}
    inner, known = dict[str, Config](), dict(widths or {})
    for name in sorted(nested, key=lambda name: not hasattr(nested[name], "vocab_size")):  # others lead into the text's
        inner[name] = smaller(nested[name], limits, known)
        known = dict(_hidden(nested[name], inner[name])) | known
    values = {name: getattr(config, name) for name in _names(config) if hasattr(config, name)}
    factors = [old / new for name in inner for old, new in _hidden(nested[name], inner[name])]
    return type(config)(**(_Shrinker(values, limits, known, factors).changed() | inner))


def _hidden(old: Config, new: Config) -> list[tuple[Any, Any]]:
    """The width of a part, before and after."""
    pairs = ((getattr(old, key, None), getattr(new, key, None)) for key in _HIDDEN)
    return [(a, b) for a, b in pairs if _count(a) and _count(b)][:1]


def _is_config(value: object) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict")


def _names(config: Config) -> list[str]:
    """The keys that the class of a config takes."""
    if dataclasses.is_dataclass(config):
        return [field.name for field in dataclasses.fields(config) if field.init and not field.name.startswith("_")]
    found: dict[str, None] = {}
    for kind in type(config).__mro__[:-1]:
        parameters = inspect.signature(kind).parameters.values()
        found |= {p.name: None for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return list(found)


class _Shrinker:
    """The keys of one config, its main sizes, and by what widths, heads and the widths of heads are divided.

    `factors`: by what the widths of its parts were, for a config without a width of its own.
    """

    def __init__(
        self, values: Mapping[str, Any], limits: Limits, widths: Mapping[int, int], factors: list[float]
    ) -> None:
        self.values, self.limits = dict(values), limits
        counts = {v for k, v in values.items() if _is(_LAYERS, k) and _count(v)}
        self.layers: dict[int, int] = {v: self._layers(v, max(counts)) for v in counts}
        self.vocabulary = next((v for k, v in values.items() if k.endswith("vocab_size") and _count(v)), None)
        self.patch: Any = values.get("patch_size")
        hidden: Any = next((v for k in _HIDDEN if _count(v := values.get(k)) or _counts(v)), None)
        self.hidden = hidden
        self.widths = {old: new for old, new in widths.items() if old != hidden}
        heads: Any = next(
            (v for k, v in values.items() if k.endswith(("attention_heads", "n_head", "num_heads")) and _count(v)), 0
        )
        head: Any = next((v for k, v in values.items() if _is(_HEAD_WIDTH, k) and _count(v)), 0)
        if _count(hidden) and heads:
            head = head or hidden / heads
        self.factor, self.heads, self.head = 1.0, 1.0, 1.0
        limit = limits.get("widths")
        if limit is None:
            return
        self.heads = max(1.0, heads / HEADS)
        self.head = max(1.0, head / limit)
        if _counts(hidden):
            self.factor = max(1.0, min(hidden) / limit)
        elif heads and _count(hidden):
            self.factor = self.heads * self.head
        elif _count(hidden):
            self.factor = max(1.0, hidden / (HEADS * limit))
        else:
            self.factor = next(iter(factors), 8.0)

    def _layers(self, count: int, most: int) -> int:
        """Layers that are left of `count`; of the deepest part there are `most`."""
        return max(1, min(count, count * self.limits.get("layers", most) // most))

    def changed(self) -> dict[str, Any]:
        """The values of the smaller config."""
        return {name: self._small(name, value) for name, value in self.values.items()}

    def _small(self, name: str, value: Any) -> Any:
        if _is(_TOKEN, name):
            return self._token(value)
        if isinstance(value, Mapping):
            return {k: self._section(v) if k == "mrope_section" else v for k, v in value.items()}
        if name == "layer_types" or (_counts(value) and not _is(_LAYERS, name) and len(value) in self.layers):
            return self._for_each_layer(value)
        if isinstance(value, bool) or not (_count(value) or _counts(value)):
            return self._for_each_layer(value) if isinstance(value, list | tuple) else value
        for group, pattern, rule in _RULES:
            if _is(pattern, name):
                return rule(self, value) if group in self.limits else value
        return self.width(value) if value == self.hidden and "widths" in self.limits else value

    def _section(self, values: Any) -> Any:
        """Parts of a head, which add up to a share of it."""
        if not _counts(values):
            return values
        new = [max(1, round(v / self.head)) for v in values]
        return [*new[:-1], max(1, round(sum(values) / self.head) - sum(new[:-1]))]

    def _for_each_layer(self, values: Any) -> Any:
        """One value for every layer: as many as are left, of every kind first."""
        left = self.layers.get(len(values or ()))
        if left is None or left == len(values):
            return values
        try:
            kinds = list(dict.fromkeys(values))
        except TypeError:
            kinds = []
        return type(values)([*kinds, *values][:left])

    def _token(self, value: Any) -> Any:
        """A token that is in the smaller vocabulary."""
        if isinstance(value, list | tuple):
            return type(value)(self._token(v) for v in value)
        limit = min(self.vocabulary or math.inf, self.limits.get("vocabulary", math.inf))
        return int(value % limit) if isinstance(value, int) and value >= limit else value

    # Rules, by what a key counts

    def width(self, value: Any) -> Any:
        """Widths, divided by the factor, as multiples of 8."""
        if _counts(value):
            return type(value)(self.width(v) for v in value)
        if value in self.widths:
            return self.widths[value]
        return value if value <= 8 else max(8, round(value / self.factor / 8) * 8)

    def head_width(self, value: Any) -> Any:
        """The width of a head, or the part of it that is rotated."""
        return self._divided(value, self.head, 4)

    def few_heads(self, value: Any) -> Any:
        """Heads; those of keys and values, or of a state space, keep their share of them."""
        if _counts(value):
            return type(value)(max(1, v // min(value)) for v in value)
        return self._divided(value, self.heads, 1)

    def _divided(self, value: Any, factor: float, least: int) -> Any:
        if _counts(value):
            return type(value)(self._divided(v, factor, least) for v in value)
        return max(min(value, least), round(value / factor))

    def few_layers(self, value: Any) -> Any:
        """Layers; of several stages each has one or two."""
        if _counts(value):
            limit = self.limits["layers"]
            return type(value)(min(v, limit if i == 0 else limit // 2) for i, v in enumerate(value))
        return self.layers[value]

    def image(self, value: Any) -> Any:
        """A few patches, of the size that they have."""
        if _counts(value):
            return type(value)(self.image(v) for v in value)
        patch = self.patch if _count(self.patch) else max(self.patch) if _counts(self.patch) else 4
        limit = self.limits["images"]
        return min(value, max(limit, limit // 16 * patch) if patch > 4 else 2 * limit)


def at_most(limit: int) -> Callable[[_Shrinker, Any], Any]:
    """Numbers of at most `limit`."""
    return lambda _, value: type(value)(min(v, limit) for v in value) if _counts(value) else min(value, limit)


def _within(group: str) -> Callable[[_Shrinker, Any], Any]:
    """Numbers of at most the limit of a group."""
    return lambda shrinker, value: at_most(shrinker.limits[group])(shrinker, value)


_RULES: tuple[tuple[str, str, Callable[[_Shrinker, Any], Any]], ...] = (
    ("vocabulary", r".*vocab_size|vocab_size.*|codebook_size", _within("vocabulary")),
    (
        "positions",
        r"max_position_embeddings|n_positions|n_ctx|max_\w*target_positions|max_seq\w*|max_sequence_length|seq_length",
        _within("positions"),
    ),
    ("positions", r"max_source_positions|max_spectrogram_frames", at_most(FRAMES)),
    ("experts", r"n_group|topk_group|n_groups|num_groups|first_k_dense_replace", at_most(1)),
    ("experts", r".*experts_per_tok\w*|num_selected_experts|moe_(?:top_?)?k", at_most(2)),
    ("experts", r".*experts", _within("experts")),
    ("choices", r".*top_?k|topk_\w*", _within("choices")),
    ("layers", _LAYERS, _Shrinker.few_layers),
    ("widths", r".*heads|n_head|n_heads|.*_heads_\w+|num_key_value\w*|multi_query_group_num", _Shrinker.few_heads),
    ("widths", rf"{_HEAD_WIDTH}|rotary_dim|rotary_ndims", _Shrinker.head_width),
    ("images", r"image_size|input_size", _Shrinker.image),
    ("windows", r"window_size|pretrained_window_sizes", at_most(2)),
    (
        "windows",
        r"attention_window|local_attention|sliding_window|\w*chunk_(?:size|len\w*)|block_size|\w*chunk_length",
        _within("windows"),
    ),
    ("widths", r"num_filters|base_\w*channels", at_most(FILTERS)),
    ("widths", _NOT_WIDTHS, lambda _, value: value),
    (
        "widths",
        r".*(?:hidden|intermediate|embd|embed|embedding|ffn|mlp|width|inner|proj|projection|rank|lora|channels|filters|"
        r"d_model|d_ff|dim|dims|n_embd|n_inner|expand_dim|state_size).*",
        _Shrinker.width,
    ),
)
"""(group, names of keys, rule): the first whose names match is applied if its group has a limit."""


def _is(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _counts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_count, value))
