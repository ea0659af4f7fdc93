"""`hf:NAME`: a model of transformers, built from its config. Its weights are not needed, and not read.

NAME is a folder with a config.json, or the name of a repository whose config is in the hub's cache; nothing is
downloaded. The class is that of the config's `architectures`; `hf:NAME:CLASS` names another one, `+attention_mask` an
argument of forward that is given too.
"""

import importlib
import inspect
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...errors import PartitaError
from .config_shrinker import shrunk
from .huggingface_inputs import OPTIONAL, example_inputs, parts, sequence_of
from .scheme import Build, weights_on

_HEADS = (
    "AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText", "AutoModelForImageClassification", "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForAudioClassification",
    "AutoModelForCTC", "AutoModelForVideoClassification", "AutoModelForSemanticSegmentation",
)  # fmt: skip
"""Auto classes of models with a loss, the most usual task first."""

MOST_TRIED = 50_000_000
"""Most weights of a small model that is called once to see whether its sizes fit."""

_DRAWN = (
    "layerdrop",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "mask_time_prob",
    "mask_feature_prob",
    "apply_spec_augment",
)
"""Keys that make forward draw numbers in Python: which layers are skipped, which spans are masked."""


def load(name: str, how: Build) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its inputs, with labels. PartitaError: no such config, no such class, a class without loss."""
    transformers = importlib.import_module("transformers")
    place, kind, more = _parsed(name)
    config = _config(transformers, place)
    found = _class(transformers, config, place, kind)
    return built(found, config, how, more)


def built(kind: Any, config: Any, how: Build, more: Sequence[str] = ()) -> tuple[nn.Module, dict[str, Any]]:
    """A model of class `kind` from its config, with inputs; `more` arguments of forward are given too.

    Raises PartitaError if the class cannot be built, or computes no loss.
    """
    small, needed = _small(kind, config)
    config = trainable(kind, small if how.small else config)
    try:
        with weights_on(how.device):
            module = kind(config)
    except Exception as error:
        raise PartitaError(
            f"{kind.__name__} cannot be built from its config: {type(error).__name__}: {error}"
        ) from error
    sequence = sequence_of(config, how.sequence, how.small)
    with torch.device("meta" if how.device == "meta" else "cpu"):
        inputs = example_inputs(module, config, sequence, (*more, *needed))
    if how.sequence is not None and not any(name in inputs for name in ("input_ids", "decoder_input_ids")):
        raise PartitaError(f"{kind.__name__} takes no tokens; leave --sequence out")
    return module, inputs


def _parsed(name: str) -> tuple[str, str, tuple[str, ...]]:
    """The place, the class (empty: the config's) and further arguments of NAME[:CLASS][+ARGUMENT ...]."""
    if Path(name).is_dir():
        return name, "", ()
    name, *more = name.split("+")
    place, _, kind = name.rpartition(":") if ":" in name else (name, "", "")
    return place, kind, tuple(more)


def _config(transformers: Any, place: str) -> Any:
    """The config in a folder, or in the hub's cache. PartitaError: in neither, or it needs code of its own."""
    folder = Path(place)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise PartitaError(f"hf:{place}: there is no config.json in {folder.resolve()}")
    try:
        return transformers.AutoConfig.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        if folder.is_dir():
            raise PartitaError(f"hf:{place}: {folder / 'config.json'} cannot be read: {reason}") from error
        if "trust_remote_code" in str(error) or "model type" in str(error):
            raise PartitaError(
                f"hf:{place}: transformers {transformers.__version__} has no such model: {reason}"
            ) from error
        cache = transformers.utils.hub.constants.HF_HUB_CACHE
        raise PartitaError(
            f"hf:{place}: no folder {str(folder.resolve())!r}, and its config is not in the hub's cache ({cache}); "
            f"download it with `hf download {place} config.json`, or name a folder that has a config.json"
        ) from error


def _class(transformers: Any, config: Any, place: str, wanted: str) -> Any:
    """The class that is trained. PartitaError: there is no such class, or the config names none."""
    named = wanted or next(iter(config.architectures or ()), "")
    heads = _heads(transformers, config)
    if named:
        found: Any = getattr(transformers, named, None)
        if not (inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)):
            others = f"; with a {config.model_type} config: {', '.join(heads)}" if heads else ""
            raise PartitaError(f"hf:{place}: transformers {transformers.__version__} has no model {named!r}{others}")
        if heads and not _has_loss(found):
            raise PartitaError(
                f"hf:{place}: {named} computes no loss; name a head, as in hf:{place}:{next(iter(heads))}"
            )
        return found
    if not heads:
        raise PartitaError(f"hf:{place}: the config names no architecture; name a class, as in hf:{place}:CLASS")
    return next(iter(heads.values()))


def _has_loss(kind: Any) -> bool:
    names = inspect.signature(kind.forward).parameters
    return bool({"labels", "return_loss", "start_positions"}.intersection(names))


def _heads(transformers: Any, config: Any) -> dict[str, Any]:
    """The classes with a loss that can be built from a config, by name."""
    found: dict[str, Any] = {}
    for auto in _HEADS:
        mapping = getattr(transformers, auto)._model_mapping if hasattr(transformers, auto) else {}
        kind = mapping.get(type(config), None)
        for one in kind if isinstance(kind, tuple) else [kind] if kind is not None else []:
            found.setdefault(one.__name__, one)
    return found


def _small(kind: Any, config: Any) -> tuple[Any, tuple[str, ...]]:
    """The smallest config of an architecture that can be called, and the arguments that forward needs besides."""
    needed: tuple[str, ...] = ()

    def fits(made: Any, whole: bool) -> bool:
        nonlocal needed
        try:
            made = trainable(kind, made, tell=False)
            with torch.device("meta"):
                weights = sum(p.numel() for p in kind(made).parameters())
        except Exception:  # whatever the constructor raises for sizes that do not fit
            return False
        if weights > MOST_TRIED:
            return not whole
        found = _needed(kind, made)
        needed = needed if found is None else found
        return found is not None

    return shrunk(config, fits), needed


def _needed(kind: Any, config: Any) -> tuple[str, ...] | None:
    """The first of `OPTIONAL` with which a model returns a loss for its example inputs; None if there is none."""
    with torch.random.fork_rng(devices=[]), suppress(Exception):  # whatever the constructor raises
        module, sequence = kind(config), sequence_of(config, None, small=True)
        forward = inspect.signature(module.forward).parameters
        for more in OPTIONAL:
            if not forward.keys() >= {*more}:
                continue
            with torch.no_grad(), suppress(Exception):  # whatever forward raises for inputs that do not fit
                if isinstance(module(**example_inputs(module, config, sequence, more)).loss, torch.Tensor):
                    return more
    return None


def trainable(kind: Any, config: Any, tell: bool = True) -> Any:
    """The config for training one graph: no cache of keys and values, no numbers drawn in Python.

    Weights have torch's default dtype, whatever that of the published ones: some classes build only their body by it.
    Classifiers of sequences find the last token by the padding's; where the config has none, that is the end's.
    """
    for part in parts(config):
        if getattr(part, "use_cache", False):
            part.use_cache = False
        setattr(part, "dtype" if hasattr(part, "dtype") else "torch_dtype", None)  # the older name warns
        drawn = [name for name in _DRAWN if getattr(part, name, 0)]
        for name in drawn:
            setattr(part, name, type(getattr(part, name))(0))
        if drawn and tell:
            warnings.warn(
                f"{', '.join(drawn)} of the config set to 0: forward draws by them in Python, so that every step would "
                "be another graph",
                stacklevel=2,
            )
    if kind.__name__.endswith("ForSequenceClassification") and getattr(config, "pad_token_id", 0) is None:
        end = getattr(config, "eos_token_id", None)
        config.pad_token_id = end if isinstance(end, int) else 0
    return config
