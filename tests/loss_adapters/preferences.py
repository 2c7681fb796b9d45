"""Preference losses beside DPO: unpaired, reference-free, odds ratios."""

import jax.numpy as jnp
import numpy as np

from rljax.losses import mean, preference_free, preference_unpaired, running, supervised
from rljax.losses.logprobs import sequence_logprobs, token_logprobs_from_logits
from tests.loss_adapters.base import shifted


def by_label(loss, labels):
    good = np.asarray(labels)
    return jnp.concatenate([loss[good], loss[~good]])


def label_metrics(stats, labels):
    good = labels.astype(stats["rewards/chosen"].dtype)
    means = {
        "rewards/chosen": mean.row_mean(stats["rewards/chosen"], good),
        "rewards/rejected": mean.row_mean(stats["rewards/rejected"], 1 - good),
    }
    out = {k: m.value() for k, m in means.items()}
    return out | {"rewards/margins": out["rewards/chosen"] - out["rewards/rejected"]}


def kto_options(hp, x):
    return {
        "logps": x["policy_logps"],
        "ref_logps": x["ref_logps"],
        "desirable": x["labels"],
        "beta": hp["beta"],
        "desirable_weight": hp["desirable_weight"],
        "undesirable_weight": hp["undesirable_weight"],
    }


def kto_outputs(loss, stats, labels):
    return {
        "loss": mean.row_mean(loss).value(),
        "losses_desirable_then_undesirable": by_label(loss, labels),
        "metrics": label_metrics(stats, labels),
    }


def kto(hp, x):
    point = preference_unpaired.kto_reference_point(x["policy_KL_logps"], x["ref_KL_logps"])
    loss, stats = preference_unpaired.kto(**kto_options(hp, x), reference_point=point)
    return kto_outputs(loss, stats, x["labels"]) | {"kl": point}


def apo_zero_unpaired(hp, x):
    loss, stats = preference_unpaired.apo_zero_unpaired(**kto_options(hp, x))
    return kto_outputs(loss, stats, x["labels"])


def bco(hp, x, state):
    chosen, rejected = x["policy_chosen_logps"], x["policy_rejected_logps"]
    logps = jnp.concatenate([chosen, rejected])
    ref = jnp.concatenate([x["ref_chosen_logps"], x["ref_rejected_logps"]])
    desirable = jnp.arange(logps.shape[0]) < chosen.shape[0]
    options = {"logps": logps, "ref_logps": ref, "desirable": desirable, "beta": hp["beta"]}
    weight = None
    if hp["density_ratio_clip"] is not None:
        low, high = hp["density_ratio_clip"]
        ratio = preference_unpaired.density_ratio(
            x["prob_desirable_of_rejected_prompts"], low=low, high=high
        )
        weight = jnp.concatenate([jnp.ones_like(chosen), ratio])
    _, stats = preference_unpaired.bco(**options, delta=0.0)
    rewards = stats["rewards/chosen"] + stats["rewards/rejected"]  # each is 0 on the other's rows
    state = running.update(state or running.empty(), rewards)
    loss, _ = preference_unpaired.bco(**options, delta=state.mean, weight=weight)
    n = chosen.shape[0]
    return {
        "loss": mean.row_mean(loss).value(),
        "losses_chosen_then_rejected": loss,
        "delta_used": state.mean,
        "chosen_rewards": rewards[:n],
        "rejected_rewards": rewards[n:],
        "running_mean": state.mean,
        "running_std": state.std(),
        "running_count": state.count,
    }, state


def free_loss(hp, chosen, rejected):
    """CPO's `loss_type`, TPO's being among them."""
    pair = {"chosen": chosen, "rejected": rejected, "beta": hp["beta"]}
    smoothing = {"label_smoothing": hp.get("label_smoothing", 0.0)}
    kind, alpha = hp["loss_type"], hp.get("alpha", 0.0)
    gamma = {"simpo": hp.get("simpo_gamma"), "tpo-l": hp.get("tpo_l_gamma")}.get(kind, 0.0)
    if alpha:
        return preference_free.alphapo(**pair, **smoothing, gamma=gamma, alpha=alpha)
    if kind in ("simpo", "tpo-l"):
        return preference_free.simpo(**pair, **smoothing, gamma=gamma)
    if kind == "sigmoid":
        return preference_free.cpo(**pair, **smoothing)
    return {
        "hinge": preference_free.reference_free_hinge,
        "ipo": preference_free.reference_free_ipo,
    }[kind](**pair)


def cpo(hp, x):
    loss, stats = free_loss(hp, x["policy_chosen_logps"], x["policy_rejected_logps"])
    return {
        "loss": mean.row_mean(loss).value(),
        "losses": loss,
        "chosen_rewards": stats["rewards/chosen"],
        "rejected_rewards": stats["rewards/rejected"],
    }


def scored(logits, labels, *, average):
    logp, _, mask = shifted(logits, labels)
    return sequence_logprobs(logp, mask, average=average), mean.token_mean(
        supervised.nll(logp), mask
    )


def cpo_full(hp, x):
    n = x["chosen_labels"].shape[0]
    average = hp["loss_type"] in ("simpo", "ipo")
    chosen, nll = scored(x["logits"][:n], x["chosen_labels"], average=average)
    rejected, _ = scored(x["logits"][n:], x["rejected_labels"], average=average)
    loss, _ = free_loss(hp, chosen, rejected)
    out = {
        "loss": mean.weighted_sum((1, mean.row_mean(loss)), (hp["cpo_alpha"], nll)),
        "losses": loss,
        "chosen_logps": chosen,
        "rejected_logps": rejected,
    }
    return out | ({"nll_loss": nll.value()} if hp["cpo_alpha"] else {"nll_loss": jnp.zeros(())})


def tpo(hp, x):
    n = x["input_ids"].shape[0] // (3 if hp["tpo_alpha"] else 2)
    labels = jnp.where(x["completion_mask"] != 0, x["input_ids"], -100)
    average = hp["loss_type"] in ("ipo", "tpo-l")
    (chosen, _), (rejected, _) = (
        scored(x["logits"][rows], labels[rows], average=average)
        for rows in (slice(n), slice(n, 2 * n))
    )
    loss, _ = free_loss(hp, chosen, rejected)
    terms = [(1, mean.row_mean(loss))]
    if hp["tpo_alpha"]:
        _, gold = scored(x["logits"][2 * n :], labels[2 * n :], average=average)
        terms.append((hp["tpo_alpha"], gold))
    return {
        "loss": mean.weighted_sum(*terms),
        "per_sequence_loss": loss,
        "chosen_logps": chosen,
        "rejected_logps": rejected,
    }


def orpo_odds_ratio(hp, x):
    loss, stats = preference_free.orpo(
        chosen=x["policy_chosen_avg_logps"], rejected=x["policy_rejected_avg_logps"],
        beta=hp["beta"],
    )  # fmt: skip
    return {
        "loss": mean.row_mean(loss).value(),
        "peer_losses": -loss,  # the peer subtracts them
        "mean_log_sigmoid_log_odds": stats["log_odds_ratio"].mean(),
        "mean_log_odds": stats["log_odds_chosen"].mean(),
        "chosen_rewards": stats["rewards/chosen"],
        "rejected_rewards": stats["rewards/rejected"],
    }


def orpo_full(hp, x):
    n = x["chosen_labels"].shape[0]
    chosen, _ = scored(x["logits"][:n], x["chosen_labels"], average=True)
    rejected, _ = scored(x["logits"][n:], x["rejected_labels"], average=True)
    loss, _ = preference_free.orpo(chosen=chosen, rejected=rejected, beta=hp["beta"])
    # The peer's NLL is over the prompt too.
    mask = x["chosen_attention_mask"][:, 1:]
    logp, _ = token_logprobs_from_logits(
        x["logits"][:n, :-1], x["chosen_input_ids"][:, 1:], mask=mask
    )
    nll = mean.token_mean(supervised.nll(logp), mask)
    return {
        "loss": mean.weighted_sum((1, nll), (1, mean.row_mean(loss))),
        "nll_loss": nll.value(),
        "losses": -loss,
        "chosen_logps": chosen,
        "rejected_logps": rejected,
    }


ADAPTERS = {
    "kto/kto": kto,
    "kto/apo_zero_unpaired": apo_zero_unpaired,
    "bco/bco": bco,
    "cpo/sigmoid": cpo,
    "cpo/hinge": cpo,
    "cpo/ipo": cpo,
    "simpo/simpo": cpo,
    "alphapo/alphapo": cpo,
    "cpo/full": cpo_full,
    "tpo/tpo": tpo,
    "orpo/odds_ratio": orpo_odds_ratio,
    "orpo/full": orpo_full,
}
