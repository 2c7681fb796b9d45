"""Losses on the policy's own samples."""

import jax
import jax.numpy as jnp

from rljax.losses import advantage, mean, preference, preference_online
from rljax.losses.logprobs import sequence_logprobs


def a2po(hp, x):
    values = preference_online.optimal_value(x["value_sample_rewards"], beta=hp["beta1"])
    loss, _ = preference_online.optimal_advantage_regression(
        logps=x["policy_logps"], ref_logps=x["ref_logps"], rewards=x["rewards"],
        values=values, beta=hp["beta2"],
    )  # fmt: skip
    return {"v_star": values, "loss": mean.row_mean(loss).value()}


def online_dpo(hp, x):
    n = x["rewards"].shape[0] // 2
    rewards = x["rewards"]
    if hp["missing_eos_penalty"] is not None:
        rewards = advantage.penalize_missing_end(
            rewards, x["contains_eos"], penalty=hp["missing_eos_penalty"]
        )
    wins = rewards[:n] >= rewards[n:]
    logps, ref = (sequence_logprobs(x[k], x["mask"]) for k in ("token_logps", "ref_token_logps"))
    chosen, rejected = preference_online.order(logps[:n], logps[n:], wins)
    ref_chosen, ref_rejected = preference_online.order(ref[:n], ref[n:], wins)
    loss, _ = {"sigmoid": preference.dpo, "ipo": preference.ipo}[hp["loss_type"]](
        chosen=chosen, rejected=rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected,
        beta=hp["beta"],
    )  # fmt: skip
    rows = jnp.arange(2 * n, dtype=logps.dtype)
    indices = preference_online.order(rows[:n], rows[n:], wins)
    return {
        "loss": mean.row_mean(loss).value(),
        "losses": loss,
        "chosen_indices": indices[0],
        "rejected_indices": indices[1],
        "rewards_after_penalty": rewards,
    }


def nash_md(hp, x):
    loss, stats = preference_online.nash_md(
        logps=x["token_logps"],
        ref_logps=x["ref_token_logps"],
        mask=x["mask"],
        win_probability=jax.nn.sigmoid(x["model_scores"] - x["mixture_scores"]),
        beta=hp["beta"],
    )
    return {"loss": mean.row_mean(loss).value(), **stats}


def xpo(hp, x):
    wins = x["model_scores"] >= x["ref_scores"]
    sums = {
        (who, data): sequence_logprobs(x[f"{who}_logps_on_{data}_data"], x[f"{data}_data_mask"])
        for who in ("model", "ref")
        for data in ("model", "ref")
    }
    chosen, rejected = preference_online.order(sums["model", "model"], sums["model", "ref"], wins)
    ref_chosen, ref_rejected = preference_online.order(
        sums["ref", "model"], sums["ref", "ref"], wins
    )
    pair_loss, _ = {"sigmoid": preference.dpo, "ipo": preference.ipo}[hp["loss_type"]](
        chosen=chosen, rejected=rejected, ref_chosen=ref_chosen, ref_rejected=ref_rejected,
        beta=hp["beta"],
    )  # fmt: skip
    loss = preference_online.xpo(pair_loss, sums["model", "ref"], alpha=hp["alpha"])
    bonus = preference_online.xpo(
        jnp.zeros_like(pair_loss), sums["model", "ref"], alpha=hp["alpha"]
    )
    return {"loss": mean.row_mean(loss).value(), "dpo_losses": pair_loss, "xpo_losses": bonus}


ADAPTERS = {
    "a2po/a2po": a2po,
    "online_dpo/online_dpo": online_dpo,
    "nash_md/loss": nash_md,
    "xpo/loss": xpo,
}
