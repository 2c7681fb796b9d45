"""Objectives of RL fine-tuning and alignment, as jitted functions of arrays.

Arrays and scalars in; values of each row or token out, unreduced, with a dict of statistics under
the names that TRL's dashboards use. No model, no config, no trainer. Reduce with `token_mean`,
`row_mean` and their like, whose `Mean`s add up over microbatches and devices before they divide.

    from rljax.losses import dpo, row_mean

    loss, stats = dpo(chosen=c, rejected=r, ref_chosen=rc, ref_rejected=rr, beta=0.1)
    row_mean(loss).value()

Everything computes in fp32 or better, is finite in value and gradient, ignores what stands at
masked positions, and works under `grad`, `vmap`, `scan` and `shard_map`. Helpers that are not
listed here live in the modules: `kl`, `masked`, `importance`, `pairwise`, `running`, `completions`.
"""

from rljax.losses.advantage import (
    gae,
    penalize_missing_end,
    reinforce_plus_plus,
    returns,
    token_rewards,
)
from rljax.losses.controllers import adaptive_entropy, adaptive_kl, lagrange_multiplier
from rljax.losses.distill import chunked_divergence, divergence, forward_kl, reverse_kl
from rljax.losses.distill_policy import iw_opd, minillm_advantage
from rljax.losses.distill_topk import sampled_reverse_kl, topk_divergence
from rljax.losses.distill_uld import align_by_bytes, merge_positions, sorted_l1
from rljax.losses.group_advantage import (
    best_minus_second,
    center,
    group_stats,
    leave_one_out,
    leave_one_out_standardize,
    optimal_baseline,
    remax,
    scored,
    standardize,
    win_rate,
)
from rljax.losses.listwise import pairwise_mean, plackett_luce, pro, rrhf
from rljax.losses.logprobs import (
    TokenScores,
    entropy_of,
    log_softmax,
    logprobs_at,
    sequence_logprobs,
    token_logprobs,
    token_logprobs_from_logits,
    token_scores,
)
from rljax.losses.mean import (
    Mean,
    constant_length,
    row_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
    weighted_sum,
)
from rljax.losses.multi_reward import gdpo
from rljax.losses.policy import grpo, gspo, ppo_clip, regularize, reinforce
from rljax.losses.policy_entropy import clip_cov, high_entropy, kl_cov
from rljax.losses.policy_sequence import (
    advantage_regression,
    gmpo,
    mirror_descent,
    quark,
    sequence_clip,
)
from rljax.losses.policy_soft import cispo, sapo, vespo
from rljax.losses.preference import (
    discopop,
    dpo,
    exo,
    gpo,
    hinge,
    ipo,
    length_normalized_dpo,
    robust_dpo,
)
from rljax.losses.preference_anchored import (
    apo_down,
    apo_zero,
    bco_pair,
    kto_pair,
    nca_pair,
    sppo,
    sppo_hard,
)
from rljax.losses.preference_free import (
    alphapo,
    cpo,
    orpo,
    reference_free_hinge,
    reference_free_ipo,
    simpo,
    slic,
)
from rljax.losses.preference_margin import (
    dpop,
    dynamic_beta,
    ld_logprobs,
    odpo,
    tdpo1,
    tdpo2,
    wpo,
    wpo_weights,
)
from rljax.losses.preference_online import (
    dno,
    nash_md,
    optimal_advantage_regression,
    optimal_value,
    reward_aware,
    xpo,
)
from rljax.losses.preference_sorted import aot, aot_unpaired
from rljax.losses.preference_unpaired import (
    apo_zero_unpaired,
    bco,
    d2o,
    dro,
    kto,
    kto_reference_point,
    npo,
)
from rljax.losses.reward import (
    bradley_terry,
    focal,
    general_preference,
    generation_regularized,
    scaled_bradley_terry,
    score_barrier,
    signed_cost,
)
from rljax.losses.reward_regression import (
    attribute_regression,
    decorrelate,
    gated_score,
    gaussian_nll,
    quantile_regression,
    step_classification,
    verdict_nll,
)
from rljax.losses.supervised import dft, label_smoothed_nll, nll
from rljax.losses.trust_region import natural_step
from rljax.losses.value import clipped as clipped_value
from rljax.losses.value import explained_variance

__all__ = [
    "Mean",
    "TokenScores",
    "adaptive_entropy",
    "adaptive_kl",
    "advantage_regression",
    "align_by_bytes",
    "alphapo",
    "aot",
    "aot_unpaired",
    "apo_down",
    "apo_zero",
    "apo_zero_unpaired",
    "attribute_regression",
    "bco",
    "bco_pair",
    "best_minus_second",
    "bradley_terry",
    "center",
    "chunked_divergence",
    "cispo",
    "clip_cov",
    "clipped_value",
    "constant_length",
    "cpo",
    "d2o",
    "decorrelate",
    "dft",
    "discopop",
    "divergence",
    "dno",
    "dpo",
    "dpop",
    "dro",
    "dynamic_beta",
    "entropy_of",
    "exo",
    "explained_variance",
    "focal",
    "forward_kl",
    "gae",
    "gated_score",
    "gaussian_nll",
    "gdpo",
    "general_preference",
    "generation_regularized",
    "gmpo",
    "gpo",
    "group_stats",
    "grpo",
    "gspo",
    "high_entropy",
    "hinge",
    "ipo",
    "iw_opd",
    "kl_cov",
    "kto",
    "kto_pair",
    "kto_reference_point",
    "label_smoothed_nll",
    "lagrange_multiplier",
    "ld_logprobs",
    "leave_one_out",
    "leave_one_out_standardize",
    "length_normalized_dpo",
    "log_softmax",
    "logprobs_at",
    "merge_positions",
    "minillm_advantage",
    "mirror_descent",
    "nash_md",
    "natural_step",
    "nca_pair",
    "nll",
    "npo",
    "odpo",
    "optimal_advantage_regression",
    "optimal_baseline",
    "optimal_value",
    "orpo",
    "pairwise_mean",
    "penalize_missing_end",
    "plackett_luce",
    "ppo_clip",
    "pro",
    "quantile_regression",
    "quark",
    "reference_free_hinge",
    "reference_free_ipo",
    "regularize",
    "reinforce",
    "reinforce_plus_plus",
    "remax",
    "returns",
    "reverse_kl",
    "reward_aware",
    "robust_dpo",
    "row_mean",
    "rrhf",
    "sampled_reverse_kl",
    "sapo",
    "scaled_bradley_terry",
    "score_barrier",
    "scored",
    "sequence_clip",
    "sequence_logprobs",
    "sequence_mean",
    "sequence_sum",
    "signed_cost",
    "simpo",
    "slic",
    "sorted_l1",
    "sppo",
    "sppo_hard",
    "standardize",
    "step_classification",
    "tdpo1",
    "tdpo2",
    "token_logprobs",
    "token_logprobs_from_logits",
    "token_mean",
    "token_rewards",
    "token_scores",
    "topk_divergence",
    "verdict_nll",
    "vespo",
    "weighted_sum",
    "win_rate",
    "wpo",
    "wpo_weights",
    "xpo",
]
