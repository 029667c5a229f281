"""Language models from their configuration alone: built without weights on torch's meta device and
exported, for what a full-size model would cost. Needs torch and transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from spyrec.ir.errors import SpyrecError
from spyrec.versions import versions

MAX_CARD_BYTES = 1 << 20
MAX_TOKENS = 1 << 20
COMMON = (
    "architectures", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "use_cache",
    "rope_theta", "rope_scaling", "rope_local_base_freq", "auto_map", "quantization_config",
    "head_dim",
)  # fmt: skip
"""What files on model hubs hold beside what a configuration lists as its own."""
WRITER = "transformers_version"
"""Stands in files that transformers wrote: all else in them is of some version of it."""
MAKERS = ("torch", "transformers")
INSTALL = (
    "models from a configuration need torch and transformers; pip install 'spyrec[transformers]'"
)


def known_cards() -> tuple[str, ...]:
    """The names of the configurations that spyrec brings along."""
    folder = resources.files("spyrec") / "cards"
    return tuple(sorted(f.name.removesuffix(".json") for f in folder.iterdir()
                        if f.name.endswith(".json")))  # fmt: skip


def read_card(source: str | Path) -> dict[str, Any]:
    """A configuration by its name among ``known_cards``, or from a JSON file as model hubs hold
    them. SpyrecError when there is none or it does not say its model_type."""
    name = str(source)
    if name in known_cards():
        text = (resources.files("spyrec") / "cards" / f"{name}.json").read_text("utf-8")
    else:
        path = Path(source)
        if not path.is_file() or path.stat().st_size > MAX_CARD_BYTES:
            raise SpyrecError(
                f"{source} is neither a configuration file nor one of {', '.join(known_cards())}"
            )
        text = path.read_text("utf-8", errors="replace")
    try:
        card = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpyrecError(f"{source} is not valid JSON: {error}") from None
    if not isinstance(card, dict) or not isinstance(card.get("model_type"), str):
        raise SpyrecError(f"{source} does not say its model_type, so it is no configuration")
    return card


@dataclass(frozen=True)
class ConfiguredModel:
    """A model that is made from its configuration when it is needed; see ``exported_model``."""

    card: Mapping[str, Any]
    prompt: int | None = None
    decode: int | None = None
    layers: int | None = None

    def exported(self) -> Any:
        """The ExportedProgram. SpyrecError as ``exported_model``."""
        return exported_model(
            self.card, prompt=self.prompt, decode=self.decode, layers=self.layers
        )

    def recipe(self) -> str:
        """All that the exported program depends on, as text; torch is not imported for that."""
        return json.dumps(
            [self.card, self.prompt, self.decode, self.layers, versions(MAKERS)], sort_keys=True
        )


def exported_model(
    card: Mapping[str, Any], *, prompt: int | None = None, decode: int | None = None,
    layers: int | None = None,
) -> Any:
    """The ExportedProgram of a model without weights, 16 bits.

    ``prompt``: reads that many tokens and gives the last one's logits. ``decode``: makes the next
    token after that many, whose keys and values are state. ``layers`` in place of the
    configuration's own number. SpyrecError when torch or transformers are not there, or do not
    know the model.
    """
    try:
        import torch
        import transformers
    except ImportError:
        raise SpyrecError(INSTALL) from None
    if (prompt is None) == (decode is None):
        raise SpyrecError("a configuration is compiled either for a prompt or to decode; say which")
    tokens = prompt if decode is None else decode
    assert tokens is not None
    if not 1 <= tokens <= MAX_TOKENS:
        raise SpyrecError(f"{tokens} tokens: expected 1 to {MAX_TOKENS}")
    given = {**card, **({} if layers is None else {"num_hidden_layers": layers})}
    kind = given.pop("model_type")
    transformers.logging.set_verbosity_error()
    config = _config(kind, given)
    _check_sizes(config, kind, tokens, layers, card)
    config.use_cache = decode is not None
    try:
        model = _on_meta(config)
        if decode is None:
            return _exported(model, {"input_ids": _ids(1, tokens)}, _last_only(model))
        at = torch.zeros(1, dtype=torch.long, device="meta")
        cached = _with_cache(model, tokens + 1)
        return _exported(cached, {"input_ids": _ids(1, 1), "cache_position": at}, {})
    except SpyrecError:
        raise
    except Exception as error:  # of many kinds: models that are no language model, or not exported
        raise SpyrecError(
            f"transformers and torch cannot make and export this {kind} model: {_reason(error)}"
        ) from None


def _config(kind: str, given: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    try:
        usual = AutoConfig.for_model(kind)
        config = AutoConfig.for_model(kind, **given)
    except (ValueError, TypeError, KeyError) as error:
        raise SpyrecError(
            f"transformers cannot make a {kind} configuration: {_reason(error)}"
        ) from None
    known = {*usual.to_dict(), *usual.attribute_map, *COMMON}
    unknown = [key for key in given if key not in known]
    if unknown and WRITER not in given:
        raise SpyrecError(
            f"a {kind} configuration has no {', '.join(unknown)}; use the names transformers has"
        )
    return config


def _reason(error: Exception) -> str:
    """What an error of theirs says, which may be pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _check_sizes(
    config: Any, kind: str, tokens: int, layers: int | None, card: Mapping[str, Any]
) -> None:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and tokens > longest:
        raise SpyrecError(f"{tokens} tokens: this {kind} model has {longest} positions")
    most = card.get("num_hidden_layers")
    if layers is not None and isinstance(most, int) and layers > most:
        raise SpyrecError(f"{layers} layers: this {kind} model has {most}")


def _on_meta(config: Any) -> Any:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    generates = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not _encodes(config)
    made = AutoModelForCausalLM if generates else AutoModel
    kind = made._model_mapping[type(config)]
    config._attn_implementation = "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"
    with torch.device("meta"):
        return made.from_config(config).eval().half()


def _encodes(config: Any) -> bool:
    """Whether it is an encoder, which may also exist as a decoder."""
    return hasattr(config, "is_decoder") and not config.is_decoder and hasattr(
        config, "type_vocab_size"
    )


def _last_only(model: Any) -> dict[str, Any]:
    """Ask only for the last token's logits, where the model can be asked."""
    import inspect

    accepts = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if accepts else {}


def _ids(batch: int, tokens: int) -> Any:
    import torch

    return torch.zeros((batch, tokens), dtype=torch.long, device="meta")


def _with_cache(model: Any, length: int) -> Any:
    """The model with room for the keys and values of ``length`` tokens as its state."""
    import torch
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    model.generation_config = GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length},
    )  # fmt: skip
    meta = torch.device("meta")
    try:
        return TorchExportableModuleWithStaticCache(
            model, batch_size=1, max_cache_len=length, device=meta
        )
    except (AssertionError, AttributeError, ValueError) as error:
        raise SpyrecError(f"transformers cannot give this model a static cache: {error}") from None


def _exported(model: Any, inputs: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    import torch

    return torch.export.export(model, (), {**inputs, **more}, strict=False)
