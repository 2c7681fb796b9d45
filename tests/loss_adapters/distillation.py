"""Distillation: same tokenizer, top-k, on-policy, and across tokenizers."""

import jax.numpy as jnp
import numpy as np

from rljax.losses import (
    distill,
    distill_policy,
    distill_topk,
    distill_uld,
    importance,
    mean,
    policy,
    supervised,
)
from rljax.losses.logprobs import log_softmax, token_logprobs_from_logits
from tests.loss_adapters.base import shifted, token_loss


def reduced(hp, loss, mask):
    if hp.get("reduction") == "sum":
        return mean.token_mean(loss, mask)._replace(weight=jnp.ones((), loss.dtype)).value()
    return token_loss(hp, loss, mask).value()


def generalized_jsd(hp, x):
    pair = [
        log_softmax(x[f"{who}_logits"], temperature=hp["temperature"])
        for who in ("student", "teacher")
    ]
    loss = distill.divergence(*pair, beta=float(hp["beta"]))
    mask = x["labels"] != -100 if "labels" in x else jnp.ones(loss.shape, bool)
    return {"loss": reduced(hp, loss, mask)}


def chunked_divergence(hp, x):
    eye = jnp.eye(x["student_logits"].shape[-1], dtype=x["student_logits"].dtype)
    loss, entropy = distill.chunked_divergence(
        x["student_logits"],
        eye,
        x["teacher_logits"],
        eye,
        mask=x["mask"],
        beta=float(hp["beta"]),
        temperature=hp["temperature"],
        student_softcap=hp["student_softcap"],
        teacher_softcap=hp["teacher_softcap"],
        student_scale=hp["student_logit_scale"],
        teacher_scale=hp["teacher_logit_scale"],
        chunk=4,
    )
    return {
        "loss": token_loss(hp, loss, x["mask"]).value(),
        "student_entropy_sum": mean.token_mean(entropy, x["mask"]).total,
        "num_valid": x["mask"].sum(),
    }


def topk_jsd(hp, x):
    loss = distill_topk.topk_divergence(
        x["student_logits"],
        x["teacher_logits"],
        beta=float(hp["beta"]),
        k=hp["top_k"],
        tail=hp["add_tail"],
        temperature=hp["temperature"],
    )
    return {"loss": reduced(hp, loss, x["labels"] != -100)}


def self_distillation(hp, x):
    student, teacher, beta = x["student_logits"], x["teacher_logits"], float(hp["alpha"])
    if hp["distillation_mode"] == "full_logits":
        loss = distill.divergence(log_softmax(student), log_softmax(teacher), beta=beta)
    elif hp["distillation_mode"] == "topk_logits":
        loss = distill_topk.topk_divergence(
            student, teacher, beta=beta, k=hp["topk"], support="student", tail=hp["add_tail"]
        )
    else:
        logps, _ = token_logprobs_from_logits(student, x["completion_ids"])
        teacher_logps, _ = token_logprobs_from_logits(teacher, x["completion_ids"])
        loss = distill_topk.sampled_reverse_kl(logps, teacher_logps)
        if hp["is_clip"] is not None:
            everywhere = jnp.ones(loss.shape, bool)
            ratio = importance.token_ratio(logps, x["old_token_logps"], everywhere)
            weight = importance.truncate(ratio, high=hp["is_clip"])
            loss = policy.regularize(loss, mask=everywhere, weight=weight)
    return {"per_token_loss": loss, "grad_student_logits_of_sum": loss.sum()}


def iw_opd(hp, x):
    mask = x["labels"] != -100
    logps, _ = token_logprobs_from_logits(
        x["student_logits"], x["completion_ids"], temperature=hp["temperature"]
    )
    loss, stats = distill_policy.iw_opd(
        student_logps=logps,
        teacher_logps=x["teacher_token_logps"],
        rollout_logps=x.get("rollout_token_logps"),
        mask=mask,
        gamma=hp["iw_opd_gamma"],
    )
    return {
        "loss": token_loss(hp, loss, mask).value(),
        "advantages": stats["advantage"],
        "weights": stats["weight"],
    }


def minillm_advantage(hp, x):
    out = distill_policy.minillm_advantage(
        student_logps=x["student_token_logps"],
        teacher_logps=x["teacher_token_logps"],
        mask=x["mask"],
        gamma=hp["gamma"],
        length_normalize=hp["length_normalization"],
        discount_from_start=hp["gamma"] > 0,  # at 0 the peer takes the reward alone
    )
    return {"advantages_times_mask": out}


def minillm_single_step(hp, x):
    loss = distill.reverse_kl(x["student_log_probs"], x["teacher_log_probs"])
    return {"loss": reduced(hp, loss, x["mask"])}


def answer(labels, skip_last):
    """(start, size) of the labelled span."""
    where = np.flatnonzero(labels != -100)
    return (int(where[0]), len(where) - skip_last) if len(where) else (0, 0)


def one_row(hp, x, i, spans):
    """ULD's loss of one row, per merged position."""
    merged = []
    bayesian = hp["token_merge_strategy"] == "bayesian"
    ends = [
        np.asarray(x[f"{who}_byte_offsets"])[i, start : start + size, 1].tolist()
        for who, (start, size) in zip(("student", "teacher"), spans)
    ]
    *groups, count = distill_uld.align_by_bytes(*ends)
    both = min(size for _, size in spans)
    for who, (start, size), group in zip(("student", "teacher"), spans, groups):
        first = start - bayesian
        logits = x[f"{who}_logits"][i, first : first + size]
        probs = jnp.exp(log_softmax(logits, temperature=hp[f"{who}_temperature"]))
        if hp["use_extended_uld"]:
            ids = x[f"{who}_input_ids"][i, start : start + size]
            base = "last" if bayesian else "first"
            probs = distill_uld.merge_positions(
                probs, ids, jnp.asarray(group), groups=count, base=base
            )
        else:
            probs = probs[:both]
        merged.append(probs)
    mapping = hp["hybrid_teacher_to_student"]
    if mapping is None:
        return distill_uld.sorted_l1(*merged)
    shared = tuple((int(t), s) for t, s in mapping.items())
    weights = hp["hybrid_weights"] and tuple(hp["hybrid_weights"])
    return distill_uld.hybrid(*merged, shared=shared, beta=float(hp["beta"]), weights=weights)


def gold_uld(hp, x):
    rows = []
    for i in range(x["student_logits"].shape[0]):
        spans = [
            answer(np.asarray(x[f"{who}_labels"])[i], hp[f"skip_{who}_eos"])
            for who in ("student", "teacher")
        ]
        if min(size for _, size in spans) <= 0:
            rows.append(jnp.zeros((), x["student_logits"].dtype))
            continue
        loss = one_row(hp, x, i, spans)
        rows.append(mean.row_mean(loss).value())
    terms = [(hp["uld_distillation_weight"], mean.row_mean(jnp.stack(rows)))]
    if hp["uld_crossentropy_weight"]:
        logp, _, mask = shifted(x["student_logits"], x["student_labels"])
        nll = mean.token_mean(supervised.nll(logp), mask)
        terms.append((hp["uld_crossentropy_weight"], nll))
    return {"loss": mean.weighted_sum(*terms)}


ADAPTERS = {
    "distill/generalized_jsd": generalized_jsd,
    "distill/chunked_divergence": chunked_divergence,
    "distill/topk_jsd": topk_jsd,
    "distill/self_distillation": self_distillation,
    "distill/iw_opd": iw_opd,
    "distill/minillm_advantage": minillm_advantage,
    "distill/minillm_single_step": minillm_single_step,
    "distill/gold_uld": gold_uld,
}
