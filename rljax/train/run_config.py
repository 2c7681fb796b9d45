"""The schema of a run: what a YAML file under `configs/` may say, with every default."""

import dataclasses
from typing import Literal

from rljax.config import ConfigError
from rljax.train.optimizer import OptimConfig


def record(cls):
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


@record
class FreshModel:
    """A decoder with random weights; the vocabulary is the tokenizer's."""

    layers: int
    embed: int
    heads: int
    mlp: int
    kv_heads: int | None = None  # None: as many as heads
    head_dim: int | None = None  # None: embed / heads
    rope_theta: float = 1e4


@record
class ModelConfig:
    path: str | None = None  # an HF folder or a .gguf file
    fresh: FreshModel | None = None  # or random weights of this size
    tokenizer: str | None = None  # None: the model's; `bytes`: the built-in byte tokenizer
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    remat: Literal["none", "full"] = "none"

    def __post_init__(self):
        if (self.path is None) == (self.fresh is None):
            raise ConfigError("path and fresh: give exactly one of the two")
        if self.fresh is not None and self.tokenizer is None:
            raise ConfigError("tokenizer is missing; a fresh model needs one (`bytes` is built in)")


@record
class MeshConfig:
    data: int = 1
    fsdp: int = -1  # -1: all devices that the others leave
    tensor: int = 1
    devices: int | None = None  # use only the first so many; None: all


@record
class DataConfig:
    train: str  # a .jsonl(.gz) file, a folder prepared by `rljax prepare`, or `toy:NAME`
    eval: str | None = None
    eval_rows: int = 0  # hold out this many rows of `train` when there is no `eval`
    columns: dict[str, str] = dataclasses.field(default_factory=dict)  # ours: theirs
    prompt_template: str | None = None  # e.g. "{question}\nThink step by step."
    chat: bool = False  # wrap plain prompts as one user turn of the tokenizer's chat template
    max_prompt_length: int = 512
    max_length: int = 1024  # prompt and completion together; PPO uses rollout.max_new_tokens
    overlong: Literal["cut", "drop"] = "cut"
    buckets: tuple[int, ...] = ()  # row lengths to compile for; (): quarters of the limit
    limit: int | None = None  # use only the first rows

    def __post_init__(self):
        if self.eval is not None and self.eval_rows:
            raise ConfigError("eval_rows holds out rows of `train`; it has no use beside `eval`")


@record
class TrainConfig:
    steps: int  # optimizer steps; for PPO, rollout batches
    batch_size: int  # rows; for PPO, prompts of one rollout batch
    microbatches: int = 1  # gradient accumulation within one optimizer step
    log_every: int = 1
    eval_every: int = 0  # 0: only at the start and the end, when there are held-out rows
    eval_batches: int | None = None  # None: all held-out rows
    save_every: int = 0  # 0: only at the end
    keep_last: int = 2
    keep_best: int = 1
    samples: int = 4  # prompts whose completions are shown before and after; 0: none
    export: bool = True  # write an HF folder `model/` at the end
    tensorboard: bool = False


@record
class RolloutConfig:
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()  # stop strings, beside the tokenizer's end-of-sequence ids

    def __post_init__(self):
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens}; wants 1 or more")
        if self.temperature < 0:
            raise ConfigError(f"temperature={self.temperature}; wants 0 (greedy) or more")


@record
class RewardConfig:
    functions: tuple[str, ...] = ()  # `pkg.mod.fn` or `path/file.py:fn`
    weights: tuple[float, ...] | None = None  # None: all 1
    checkpoint: str | None = None  # an HF folder of a ...ForSequenceClassification

    def __post_init__(self):
        if bool(self.functions) == (self.checkpoint is not None):
            raise ConfigError("functions and checkpoint: give exactly one of the two")
        if self.weights is not None and len(self.weights) != len(self.functions):
            raise ConfigError(
                f"weights={self.weights} has {len(self.weights)} values for "
                f"{len(self.functions)} functions"
            )


@record
class SftConfig:
    loss: Literal["nll", "dft"] = "nll"  # dft weighs each token by its own probability


@record
class DpoConfig:
    """Preference optimisation from pairs; `rljax.losses.preference` names each paper."""

    loss: Literal["sigmoid", "hinge", "ipo", "robust"] = "sigmoid"
    beta: float = 0.1
    length_normalize: bool = False  # mean instead of sum over a completion's tokens
    label_smoothing: float = 0.0  # probability that a pair is labelled the wrong way round
    reference: Literal["precomputed", "live"] = "precomputed"
    nll_coef: float = 0.0  # adds this times the length-normalised NLL of the chosen one

    def __post_init__(self):
        if self.beta <= 0:
            raise ConfigError(f"beta={self.beta}; wants more than 0")
        if self.label_smoothing and self.loss not in ("sigmoid", "robust"):
            raise ConfigError(f"label_smoothing: loss={self.loss} does not read it")
        if not 0 <= self.label_smoothing < 0.5:
            raise ConfigError(f"label_smoothing={self.label_smoothing}; wants 0 or more, below 0.5")


@record
class PpoConfig:
    """PPO for language models (arXiv:1707.06347, arXiv:1909.08593)."""

    samples_per_prompt: int = 1
    epochs: int = 4
    minibatches: int = 1
    clip: float = 0.2
    value_clip: float = 0.2
    value_coef: float = 0.1
    entropy_coef: float = 0.0
    gamma: float = 1.0
    gae_lambda: float = 0.95
    whiten_advantages: bool = True
    whiten_rewards: bool = False
    kl_coef: float = 0.05  # per-token KL penalty in the reward, initial value
    kl_estimator: Literal["k1", "k3"] = "k1"
    kl_target: float | None = None  # None: fixed; else adaptive towards this KL per sequence
    kl_horizon: int = 10_000  # episodes
    missing_eos_penalty: float = 0.0  # subtracted when a completion ends at the limit
    critic: Literal["head", "separate"] = "head"  # share the policy's trunk, or a copy of it
    critic_warmup: int = 0  # rollout batches in which only the critic learns

    def __post_init__(self):
        for name in ("samples_per_prompt", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}; wants 1 or more")


@record
class RunConfig:
    algorithm: Literal["sft", "dpo", "ppo"]
    output: str  # the run's folder: config, metrics, checkpoints, curves, samples, model
    seed: int = 0
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    optim: OptimConfig
    mesh: MeshConfig = MeshConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig | None = None
    sft: SftConfig | None = None
    dpo: DpoConfig | None = None
    ppo: PpoConfig | None = None

    def __post_init__(self):
        stages = {"sft": SftConfig, "dpo": DpoConfig, "ppo": PpoConfig}
        for name, section in stages.items():
            if name == self.algorithm and getattr(self, name) is None:
                object.__setattr__(self, name, section())
            elif name != self.algorithm and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name}: nothing reads this section when algorithm={self.algorithm}"
                )
        if (self.reward is None) == (self.algorithm == "ppo"):
            wants = "needs a reward section" if self.reward is None else "reads no reward section"
            raise ConfigError(f"reward: algorithm={self.algorithm} {wants}")
        if self.algorithm == "ppo" and self.rollout.temperature == 0:
            raise ConfigError("rollout.temperature=0 is greedy; PPO must sample, wants more than 0")
