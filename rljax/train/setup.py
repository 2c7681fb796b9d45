"""From a run's config to what every stage needs: folder, mesh, tokenizer, model, rows."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from rljax import config as config_lib
from rljax import sharding
from rljax.config import ConfigError
from rljax.data import encode, records, rows, tokenizer, toy
from rljax.data.encode import Encoded
from rljax.models import decoder, load
from rljax.models.config import DecoderConfig, Rope
from rljax.train.run_config import FreshModel, RunConfig

CONFIG_FILE = "config.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    config: RunConfig
    folder: pathlib.Path
    mesh: Mesh
    tokenizer: PreTrainedTokenizerBase
    cfg: DecoderConfig
    policy: decoder.Params  # fp32, placed on the mesh
    stop_ids: tuple[int, ...]
    pad_id: int
    generation_config: dict[str, Any] | None  # of the checkpoint, for the export; never applied

    @property
    def dtype(self):
        return jnp.bfloat16 if self.config.model.compute_dtype == "bfloat16" else None

    @property
    def options(self) -> dict[str, Any]:
        """How the model is run, for the stages' loss factories."""
        return {"dtype": self.dtype, "remat": self.config.model.remat}


def make(config: RunConfig) -> Setup:
    """Load everything; each wrong value raises before anything is compiled or overwritten."""
    mesh = make_mesh(config)
    where = config.model.tokenizer or config.model.path
    tok = tokenizer.load_tokenizer(where)
    generation = load.generation_config(config.model.path)
    if config.model.fresh is not None:
        cfg = fresh_config(config.model.fresh, len(tok))
        policy = fresh_params(cfg, mesh, config.seed)
    else:
        policy, cfg = load.load(config.model.path, mesh=mesh)
        if len(tok) > cfg.vocab:
            raise ConfigError(
                f"model.tokenizer: {where} has {len(tok)} ids, the model only {cfg.vocab}"
            )
    return Setup(
        config=config,
        folder=pathlib.Path(config.output),
        mesh=mesh,
        tokenizer=tok,
        cfg=cfg,
        policy=policy,
        stop_ids=tokenizer.stop_ids(tok, generation),
        pad_id=tokenizer.pad_id(tok),
        generation_config=generation,
    )


def make_mesh(config: RunConfig) -> Mesh:
    axes = dataclasses.asdict(config.mesh)
    count, devices = axes.pop("devices"), jax.devices()
    if count is not None and not 1 <= count <= len(devices):
        raise ConfigError(f"mesh.devices={count}; there are {len(devices)}")
    try:
        return sharding.make_mesh(axes, devices[:count])
    except ValueError as error:
        raise ConfigError(f"mesh: {error}") from error


def fresh_config(fresh: FreshModel, vocab: int) -> DecoderConfig:
    return DecoderConfig(
        vocab=vocab,
        embed=fresh.embed,
        mlp=fresh.mlp,
        layers=fresh.layers,
        heads=fresh.heads,
        kv_heads=fresh.kv_heads or fresh.heads,
        head_dim=fresh.head_dim or fresh.embed // fresh.heads,
        rope=Rope(theta=fresh.rope_theta),
        tie_embedding=True,
    )


def fresh_params(cfg: DecoderConfig, mesh: Mesh, seed: int) -> decoder.Params:
    where = sharding.tree(decoder.logical_axes(cfg), mesh, decoder.shapes(cfg))
    key = jax.random.key(seed)
    return jax.jit(lambda: decoder.init(key, cfg), out_shardings=where)()


def copy(params: Any) -> Any:
    """The same values in buffers of their own, so that a donated step cannot touch them."""
    return jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))(params)


def open_folder(config: RunConfig) -> bool:
    """Claim the run's folder and write the resolved config; True when the run is to be resumed.

    ConfigError when the folder holds something else, naming the first field that differs.
    """
    folder = pathlib.Path(config.output)
    file = folder / CONFIG_FILE
    if file.is_file() and _has_results(folder):
        old, new = config_lib.load(RunConfig, file), config
        for name, (there, here) in differences(
            config_lib.to_dict(old), config_lib.to_dict(new)
        ).items():
            raise ConfigError(
                f"output: {folder} holds another run ({name} is {there!r} there and {here!r} "
                f"here); name a new folder, or delete that one"
            )
        return True
    if folder.exists() and any(folder.iterdir()) and not file.is_file():
        raise ConfigError(f"output: {folder} is not empty and holds no run; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(config_lib.dump(config))
    return False


def _has_results(folder: pathlib.Path) -> bool:
    """Whether the run got as far as its first evaluation or step."""
    metrics, checkpoints = folder / "metrics.jsonl", folder / "checkpoints"
    wrote = metrics.is_file() and metrics.stat().st_size > 0
    return wrote or (checkpoints.is_dir() and any(checkpoints.iterdir()))


def differences(old: Any, new: Any, where: str = "") -> dict[str, tuple[Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        out: dict[str, tuple[Any, Any]] = {}
        for key in [*old, *(k for k in new if k not in old)]:
            out |= differences(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
        return out
    return {} if old == new else {where: (old, new)}


KINDS: dict[str, rows.Kind] = {"sft": "sft", "dpo": "preference", "ppo": "prompt"}


def load_rows(config: RunConfig, tok) -> tuple[list[Encoded], list[Encoded], list[str]]:
    """(training examples, held-out examples, lines that say what became of the rows)."""
    data, notes = config.data, []
    train = _source(data.train, KINDS[config.algorithm], config.seed, held_out=False)
    held = None
    if data.eval is not None:
        held = _source(data.eval, KINDS[config.algorithm], config.seed, held_out=True)
    if data.limit is not None:
        train = [train[i] for i in range(min(data.limit, len(train)))]
    if data.eval_rows:
        if data.eval_rows >= len(train):
            raise ConfigError(
                f"data.eval_rows={data.eval_rows} leaves nothing of {len(train)} rows"
            )
        # A fixed random choice, the same whatever the run's seed: scores stay comparable.
        chosen = set(np.random.default_rng(0).permutation(len(train))[: data.eval_rows].tolist())
        held = [train[i] for i in sorted(chosen)]
        train = [train[i] for i in range(len(train)) if i not in chosen]
    out = []
    for name, part, source in (
        ("train", train, data.train),
        ("eval", held, data.eval or data.train),
    ):
        if part is None:
            out.append([])
            continue
        examples, report = encode.encode_rows(
            part,
            KINDS[config.algorithm],
            tok,
            where=str(source),
            max_prompt_length=data.max_prompt_length,
            max_length=data.max_length,
            overlong=data.overlong,
            rename=data.columns,
            template=data.prompt_template,
            as_chat=data.chat,
        )
        notes.append(f"{name}: {report}")
        out.append(examples)
    return out[0], out[1], notes


def _source(source: str, kind: rows.Kind, seed: int, *, held_out: bool):
    if source.startswith("toy:"):
        return toy.rows(source.removeprefix("toy:"), kind, seed=seed, held_out=held_out)
    return records.read(source)
