"""PPO's two jitted halves: what a rollout is worth, and the loss that learns from it."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax.losses import advantage, kl, masked, policy, value
from rljax.losses.mean import Mean
from rljax.models import decoder, heads
from rljax.models.config import DecoderConfig
from rljax.rollout.score import score
from rljax.train.run_config import PpoConfig
from rljax.train.step import LossFn

Batch = dict[str, jax.Array]


def policy_and_values(params, cfg: DecoderConfig, batch: Batch, *, temperature, dtype, remat):
    """Log-probabilities, entropies and values, each fp32 [B, T] and aligned to the tokens.

    Position t of the values is the critic's estimate before token t is chosen. A shared trunk is
    run once; `params["critic"]`, when it is there, is a decoder of its own.
    """
    scored = score(
        params["policy"],
        cfg,
        batch["tokens"],
        batch["segments"],
        batch["mask"],
        temperature=temperature,
        dtype=dtype,
        remat=remat,
    )
    hidden_BTD = scored.hidden
    if "critic" in params:
        hidden_BTD, _ = decoder.apply(
            params["critic"],
            cfg,
            batch["tokens"],
            segments_BT=batch["segments"],
            dtype=dtype,
            remat=remat,
        )
    values_BT = heads.value(params["value"], hidden_BTD)
    values_BT = jnp.pad(values_BT[:, :-1], ((0, 0), (1, 0))) * batch["mask"]
    return scored.logprobs, scored.entropy, values_BT


def make_experience(ppo: PpoConfig, cfg: DecoderConfig, *, temperature: float, dtype=None):
    """(params, frozen, batch, kl_coef) -> (training batch, metrics), pure: jit it.

    batch: `tokens, segments, mask` [B, T] (mask: completion tokens), `weight` [B], `scores` [B] and
    `sampler_logps` [B, T]. Log-probabilities are scored again with the training program, so that
    the first importance ratio is 1 to rounding; the gap to the sampler's is a metric.
    """

    def experience(params, frozen, batch: Batch, kl_coef):
        mask_BT = batch["mask"] * batch["weight"][:, None]
        batch = batch | {"mask": mask_BT}
        logps_BT, entropy_BT, values_BT = policy_and_values(
            params, cfg, batch, temperature=temperature, dtype=dtype, remat="none"
        )
        ref_BT = score(
            frozen["reference"], cfg, batch["tokens"], batch["segments"], mask_BT,
            temperature=temperature, dtype=dtype,
        ).logprobs  # fmt: skip
        estimator = {"k1": kl.k1, "k3": kl.k3}[ppo.kl_estimator]
        kl_BT = estimator(logps_BT, ref_BT) * mask_BT
        rewards_BT = advantage.token_rewards(
            scores=batch["scores"], kl=kl_BT, kl_coef=kl_coef, mask=mask_BT
        )
        if ppo.whiten_rewards:
            rewards_BT = masked.whiten(rewards_BT, mask_BT, shift_mean=False) * mask_BT
        advantages_BT, returns_BT = advantage.gae(
            rewards=rewards_BT, values=values_BT, mask=mask_BT, gamma=ppo.gamma, lam=ppo.gae_lambda
        )
        if ppo.whiten_advantages:
            advantages_BT = masked.whiten(advantages_BT, mask_BT) * mask_BT
        out = {name: batch[name] for name in ("tokens", "segments", "mask", "weight")}
        out |= {
            "old_logps": logps_BT,
            "old_values": values_BT,
            "advantages": advantages_BT,
            "returns": returns_BT,
        }
        return out, rollout_metrics(batch, logps_BT, ref_BT, entropy_BT, kl_BT, kl_coef)

    return experience


def rollout_metrics(batch: Batch, logps_BT, ref_BT, entropy_BT, kl_BT, kl_coef) -> Batch:
    """Means over the rollout's sequences, under the names of TRL's PPO."""
    rows = jnp.maximum(batch["weight"].sum(), 1.0)
    lengths_B = batch["mask"].sum(1)
    tokens = jnp.maximum(lengths_B.sum(), 1.0)
    gap_BT = jnp.abs(batch["sampler_logps"] - logps_BT) * batch["mask"]
    non_score = -(kl_coef * kl_BT).sum() / rows
    scores = (batch["scores"] * batch["weight"]).sum() / rows
    return {
        "objective/kl": ((logps_BT - ref_BT) * batch["mask"]).sum() / rows,
        "objective/kl_trained": kl_BT.sum() / rows,
        "objective/kl_coef": kl_coef,
        "objective/entropy": (-logps_BT * batch["mask"]).sum() / rows,
        "objective/scores": scores,
        "objective/non_score_reward": non_score,
        "objective/rlhf_reward": scores + non_score,
        "policy/entropy_avg": (entropy_BT * batch["mask"]).sum() / tokens,
        "sampling/sampling_logp_difference/mean": gap_BT.sum() / tokens,
        "sampling/sampling_logp_difference/max": gap_BT.max(),
    }


def make_loss(
    ppo: PpoConfig,
    cfg: DecoderConfig,
    *,
    temperature: float,
    train_policy: bool = True,
    dtype: Any = None,
    remat: str = "none",
) -> LossFn:
    """Clipped policy and value losses over token means (arXiv:1707.06347, eq. 7 and 9).

    With `train_policy=False` (critic warm-up) only the value loss counts, and no gradient reaches
    the policy, through a shared trunk neither.
    """

    def loss_fn(params, frozen, batch, rng):
        mask_BT = batch["mask"]
        tokens = mask_BT.sum()
        if not train_policy:
            params = params | {"policy": jax.lax.stop_gradient(params["policy"])}
        logps_BT, entropy_BT, values_BT = policy_and_values(
            params, cfg, batch, temperature=temperature, dtype=dtype, remat=remat
        )
        pg_BT, pg_stats = policy.ppo_clip(
            logps=logps_BT,
            old_logps=batch["old_logps"],
            advantages=batch["advantages"],
            clip=ppo.clip,
        )
        vf_BT, vf_stats = value.clipped(
            values=values_BT,
            old_values=batch["old_values"],
            returns=batch["returns"],
            clip=ppo.value_clip,
        )
        total_BT = ppo.value_coef * vf_BT
        if train_policy:
            total_BT = total_BT + pg_BT - ppo.entropy_coef * entropy_BT
        token_stats = pg_stats | vf_stats
        token_stats |= {"loss/policy_avg": pg_BT, "loss/value_avg": vf_BT}
        means = {k: Mean((v * mask_BT).sum(), tokens) for k, v in token_stats.items()}
        return Mean((total_BT * mask_BT).sum(), tokens), means

    return loss_fn
