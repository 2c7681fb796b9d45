"""Direct preference optimisation: the policy's pair log-probabilities against a fixed reference."""

import jax
import jax.numpy as jnp

from rljax.losses import preference
from rljax.losses.mean import Mean
from rljax.models.config import DecoderConfig
from rljax.rollout.score import score
from rljax.train.run_config import DpoConfig
from rljax.train.step import LossFn

PAIR = ("tokens", "segments", "mask")


def pair_logprobs(params, cfg: DecoderConfig, batch, *, dtype=None, remat: str = "none"):
    """Summed completion log-probabilities, token counts and entropies, each fp32 [B, 2].

    Chosen and rejected run as rows of one forward pass; index 0 of axis 1 is the chosen one.
    """
    B, _, T = batch["tokens"].shape
    tokens_RT, segments_RT, mask_RT = (batch[name].reshape(2 * B, T) for name in PAIR)
    mask_RT = mask_RT.at[:, 0].set(0.0)
    scored = score(
        params, cfg, tokens_RT, segments_RT, mask_RT, temperature=1.0, dtype=dtype, remat=remat
    )
    sums = (scored.logprobs.sum(1), mask_RT.sum(1), (scored.entropy * mask_RT).sum(1))
    return tuple(x.reshape(B, 2) for x in sums)


def make_reference(cfg: DecoderConfig, *, dtype=None):
    """(params, batch) -> reference log-probabilities fp32 [B, 2]; jit it, or call it in a loss."""
    return lambda params, batch: pair_logprobs(params, cfg, batch, dtype=dtype)[0]


def pair_loss(dpo: DpoConfig, logps_B2, ref_B2, tokens_B2) -> preference.Result:
    """The configured loss of each pair, and its stats, from summed log-probabilities."""
    if dpo.length_normalize:
        tokens_B2 = jnp.maximum(tokens_B2, 1.0)
        logps_B2, ref_B2 = logps_B2 / tokens_B2, ref_B2 / tokens_B2
    smoothing = {"label_smoothing": dpo.label_smoothing}
    loss, options = {
        "sigmoid": (preference.dpo, smoothing),
        "hinge": (preference.hinge, {}),
        "ipo": (preference.ipo, {}),
        "robust": (preference.robust_dpo, smoothing),
    }[dpo.loss]
    return loss(
        chosen=logps_B2[:, 0],
        rejected=logps_B2[:, 1],
        ref_chosen=ref_B2[:, 0],
        ref_rejected=ref_B2[:, 1],
        beta=dpo.beta,
        **options,
    )


def make_loss(dpo: DpoConfig, cfg: DecoderConfig, *, dtype=None, remat: str = "none") -> LossFn:
    """A loss over batches of `tokens, segments, mask` [B, 2, T] and `weight` [B].

    params: {"policy": decoder}. The reference is `batch["ref_logps"]` [B, 2] when it was computed
    beforehand, else it is scored live with `frozen["reference"]`, a decoder of the same shape.
    """

    def loss_fn(params, frozen, batch, rng):
        logps_B2, tokens_B2, entropy_B2 = pair_logprobs(
            params["policy"], cfg, batch, dtype=dtype, remat=remat
        )
        if dpo.reference == "precomputed":
            ref_B2 = batch["ref_logps"]
        else:
            ref_B2 = jax.lax.stop_gradient(
                make_reference(cfg, dtype=dtype)(frozen["reference"], batch)
            )
        loss_B, stats = pair_loss(dpo, logps_B2, ref_B2, tokens_B2)
        weight_B = batch["weight"]
        rows = weight_B.sum()
        means = {name: Mean((value * weight_B).sum(), rows) for name, value in stats.items()}
        means |= {
            "logps/chosen": Mean((logps_B2[:, 0] * weight_B).sum(), rows),
            "logps/rejected": Mean((logps_B2[:, 1] * weight_B).sum(), rows),
            # Whether the policy itself finds the chosen completion likelier, reference apart.
            "logps/accuracies": Mean(((logps_B2[:, 0] > logps_B2[:, 1]) * weight_B).sum(), rows),
            "entropy": Mean(
                (entropy_B2.sum(1) * weight_B).sum(), (tokens_B2.sum(1) * weight_B).sum()
            ),
        }
        if dpo.nll_coef:
            # Per row and by its length (arXiv:2404.19733, eq. 1), so that a row's share of the
            # gradient does not depend on the rows it was batched with.
            nll_B = -logps_B2[:, 0] / jnp.maximum(tokens_B2[:, 0], 1.0)
            means["nll_loss"] = Mean((nll_B * weight_B).sum(), rows)
            loss_B = loss_B + dpo.nll_coef * nll_B
        return Mean((loss_B * weight_B).sum(), rows), means

    return loss_fn
