"""A model of the same architecture with few layers and narrow widths, from the keys of its Hugging Face config.

Keys say by their names what they count. Widths are divided by one factor, so that those that were equal stay equal;
layers, heads, experts, tables and images get small numbers. A key that is not understood keeps its value.
"""

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

Config = Any
"""A `transformers.PretrainedConfig`."""

LAYERS = 2
HEADS = 4
WIDE_HEADS = 2
WIDTH = 64
FIRST_WIDTH = 16
"""The first of several widths, where every stage of a network has its own."""
HEAD_WIDTH = 16
VOCABULARY = 256
POSITIONS = 128
FRAMES = 32
EXPERTS = 4
IMAGE = 32

_HIDDEN = (
    "hidden_size", "d_model", "n_embd", "hidden_sizes", "embed_dim", "embed_dims", "dim", "dims", "hidden_dim",
    "decoder_hidden_size", "encoder_hidden_size", "embedding_size", "model_dim", "embedding_dim", "hidden_channels",
)  # fmt: skip
_NOT_WIDTHS = r"(?:num|in|out|image|input)_channels|.*kernel.*|.*dim_ratio|.*_ratio"
_TOKEN = r".*_token_id|.*_token_index|.*_token_ids|(?:image|video|audio)_token"
_LAYERS = r"(?:num_|n_)?(?:\w+_)?(?:layers?|blocks|depth)|depths|num_\w*layers_\w+|n_blocks"


LEVELS = (3, 2, 1, 0)


def smaller(config: Config, level: int = 3, widths: Mapping[int, int] | None = None) -> Config:
    """A config of the same class, the smallest at the highest of `LEVELS`.

    3: everything is small. 2: heads are as wide as they were. 1: only few layers, tokens, experts. 0: the same.
    `widths`: what widths of other parts became, which this part may name too.

    Raises whatever the config's class raises for values that it does not take.
    """
    if level == 0:
        return copy.deepcopy(config)
    nested = {name: value for name in _names(config) if _is_config(value := getattr(config, name, None))}
    inner, known = dict[str, Config](), dict(widths or {})
    for name in sorted(nested, key=lambda name: not hasattr(nested[name], "vocab_size")):  # others lead into the text's
        inner[name] = smaller(nested[name], level, known)
        known = dict(_hidden(nested[name], inner[name])) | known
    values = {name: getattr(config, name) for name in _names(config) if hasattr(config, name)}
    return type(config)(**(_Shrinker(values, level, inner, nested, known).changed() | inner))


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
    """The keys of one config, and what its main sizes become."""

    def __init__(
        self,
        values: Mapping[str, Any],
        level: int,
        inner: Mapping[str, Config],
        nested: Mapping[str, Config],
        widths: Mapping[int, int],
    ) -> None:
        self.values, self.wide, self.wide_heads = dict(values), level < 2, level == 2
        self.layers = next((v for k, v in values.items() if _is(_LAYERS, k) and _count(v)), None)
        self.heads: Any = next(
            (v for k, v in values.items() if k.endswith(("attention_heads", "n_head", "num_heads"))), None
        )
        self.hidden = next((values[k] for k in _HIDDEN if _count(values.get(k))), None)
        self.vocabulary = next((v for k, v in values.items() if k.endswith("vocab_size") and _count(v)), None)
        self.widths = {old: new for old, new in widths.items() if old != self.hidden}
        self.patch: Any = values.get("patch_size")
        self.factor = self._factor(inner, nested)

    def _factor(self, inner: Mapping[str, Config], nested: Mapping[str, Config]) -> float:
        """By what widths are divided."""
        for name in _HIDDEN:
            value: Any = self.values.get(name)
            if _count(value):
                few = value // self.heads * min(self.heads, WIDE_HEADS) if self.wide_heads and _count(self.heads) else 0
                return float(max(1.0, value / (few or WIDTH)))
            if _counts(value):
                return float(max(1.0, min(value) / FIRST_WIDTH))
        for old, new in (pair for name in inner for pair in _hidden(nested[name], inner[name])):
            return float(max(1.0, old / new))  # that of the first part with a width
        return 8.0

    def changed(self) -> dict[str, Any]:
        """The values of the smaller config."""
        return {name: self._small(name, value) for name, value in self.values.items()}

    def _small(self, name: str, value: Any) -> Any:
        if _is(_TOKEN, name):
            return self._token(value)
        if isinstance(value, Mapping):
            return {k: self._of_mapping(str(k), v) for k, v in value.items()}
        if name == "layer_types" or (_counts(value) and len(value) == self.layers and not _is(_LAYERS, name)):
            return self._for_each_layer(value)
        if isinstance(value, bool) or not (_count(value) or _counts(value)):
            return self._for_each_layer(value) if isinstance(value, list | tuple) else value
        for pattern, rule in _RULES:
            if _is(pattern, name):
                return rule(self, value)
        return value

    def _of_mapping(self, name: str, value: Any) -> Any:
        if (
            name == "mrope_section" and _counts(value) and not (self.wide or self.wide_heads)
        ):  # adds up to half of a head
            old = sum(value)
            new = [max(1, v * HEAD_WIDTH // (2 * old)) for v in value]
            return [*new[:-1], HEAD_WIDTH // 2 - sum(new[:-1])]
        return value

    def _for_each_layer(self, values: Any) -> Any:
        """One value for every layer: as many as are left, of every kind first."""
        if values is None or self.layers is None or len(values) != self.layers or self.layers <= LAYERS:
            return values
        try:
            kinds = list(dict.fromkeys(values))
        except TypeError:
            kinds = []
        return type(values)([*kinds, *values][:LAYERS])

    def _token(self, value: Any) -> Any:
        """A token that is in the smaller vocabulary."""
        if isinstance(value, list | tuple):
            return type(value)(self._token(v) for v in value)
        limit = min(self.vocabulary or VOCABULARY, VOCABULARY)
        return value % limit if isinstance(value, int) and value >= limit else value

    # Rules, by what a key counts

    def width(self, value: Any) -> Any:
        """Widths, divided by the factor, as multiples of 8."""
        if self.wide:
            return value
        if _counts(value):
            return type(value)(self.width(v) for v in value)
        if value in self.widths:
            return self.widths[value]
        return value if value <= 8 else max(8, round(value / self.factor / 8) * 8)

    def head_width(self, value: Any) -> Any:
        """The width of a head: heads together are as wide, compared to the model, as they were."""
        if self.wide or self.wide_heads or not _count(value):
            return value
        if not (_count(self.heads) and self.hidden):
            return min(value, HEAD_WIDTH)
        share = self.heads * value / self.hidden
        new = share * self.width(self.hidden) / self.few_heads(self.heads)
        return max(8, round(new / 8) * 8)

    def few_heads(self, value: Any) -> Any:
        """Heads; keys and values keep their share of them."""
        if self.wide:
            return value
        if _counts(value):
            return type(value)(max(1, v // min(value)) for v in value)
        most = WIDE_HEADS if self.wide_heads else HEADS
        if not _count(self.heads) or value >= self.heads:
            return min(value, most)
        return max(1, min(self.heads, most) * value // self.heads)

    def few_layers(self, value: Any) -> Any:
        """Layers; of several stages each has one or two."""
        if _counts(value):
            return type(value)(min(v, LAYERS if i == 0 else 1) for i, v in enumerate(value))
        return min(value, LAYERS)

    def image(self, value: Any) -> Any:
        """A few patches, of the size that they have."""
        if self.wide and "window_size" in self.values:  # windows of whole images
            return value
        if _counts(value):
            return type(value)(self.image(v) for v in value)
        patch = self.patch if _count(self.patch) else max(self.patch) if _counts(self.patch) else 4
        return min(value, max(IMAGE, 2 * patch) if patch > 4 else 2 * IMAGE)

    def rotary(self, value: Any) -> Any:
        """The part of a head that is rotated."""
        return value if self.wide or self.wide_heads else min(value, HEAD_WIDTH // 2)


def at_most(limit: int, narrow: bool = False) -> Callable[[_Shrinker, Any], Any]:
    """Numbers of at most `limit`; `narrow`: only where widths change too."""

    def rule(shrinker: _Shrinker, value: Any) -> Any:
        if narrow and shrinker.wide:
            return value
        return type(value)(min(v, limit) for v in value) if _counts(value) else min(value, limit)

    return rule


_RULES: tuple[tuple[str, Callable[[_Shrinker, Any], Any]], ...] = (
    (r".*vocab_size|vocab_size.*|codebook_size", at_most(VOCABULARY)),
    (r"max_position_embeddings|n_positions|n_ctx|max_\w*target_positions|max_seq\w*|max_sequence_length|seq_length",
     at_most(POSITIONS)),
    (r"max_source_positions|max_spectrogram_frames", at_most(FRAMES)),
    (r"n_group|topk_group|n_groups|num_groups|first_k_dense_replace", at_most(1)),
    (r".*(?:experts_per_tok\w*|top_?k|topk_\w*|num_selected_experts|moe_k)", at_most(2)),
    (r".*experts", at_most(EXPERTS)),
    (_LAYERS, _Shrinker.few_layers),
    (r".*heads|n_head|n_heads|.*_heads_\w+|num_key_value\w*|multi_query_group_num", _Shrinker.few_heads),
    (r"head_dim|d_kv|kv_channels|attention_head_size|.*_head_dim", _Shrinker.head_width),
    (r"rotary_dim|rotary_ndims", _Shrinker.rotary),
    (r"image_size|input_size", _Shrinker.image),
    (r"window_size|pretrained_window_sizes", at_most(2, narrow=True)),
    (r"attention_window|local_attention|sliding_window|\w*chunk_(?:size|len\w*)|block_size|\w*chunk_length",
     at_most(FRAMES, narrow=True)),
    (_NOT_WIDTHS, lambda shrinker, value: value),
    (r".*(?:hidden|intermediate|embd|embed|embedding|ffn|mlp|width|inner|proj|projection|rank|lora|channels|filters|"
     r"d_model|d_ff|dim|dims|n_embd|n_inner|expand_dim|state_size).*", _Shrinker.width),
)  # fmt: skip


def _is(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _counts(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_count, value))
