"""Losses of reward models that predict values: attributes, quantiles, distributions, steps."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, ScalarLike, Shaped

from rljax.losses.precision import at_least_float32

Attributes = Float[Array, "B A"]


@jax.jit
def attribute_regression(
    predictions: Attributes, labels: Attributes, mask: Shaped[Array, "B A"] | None = None
) -> Attributes:
    """(prediction - label)² per attribute: HelpSteer2, SteerLM (arXiv:2406.08673).

    Missing labels, NaN or mask 0, give 0 and no gradient. Average over what is labelled.

    >>> attribute_regression(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, jnp.nan]]))
    Array([[1., 0.]], dtype=float32)
    """
    known = ~jnp.isnan(labels) if mask is None else (mask != 0) & ~jnp.isnan(labels)
    gap = at_least_float32(predictions) - jnp.where(known, labels, 0.0)
    return jnp.where(known, gap, 0.0) ** 2


@jax.jit
def quantile_regression(
    quantiles: Float[Array, "B A Q"], labels: Attributes, levels: Float[Array, "Q"]
) -> Attributes:
    """Σ_q max(τ_q u, (τ_q - 1) u), u = label - quantile: QRM's pinball loss (arXiv:2409.10164).

    `levels` τ in (0, 1): the paper takes 19 from 0.05 to 0.95. Its minimum is at the quantiles.

    >>> quantile_regression(jnp.array([[[0.0]]]), jnp.array([[1.0]]), jnp.array([0.9]))
    Array([[0.9]], dtype=float32)
    """
    u = at_least_float32(labels)[:, :, None] - at_least_float32(quantiles)
    tau = levels[None, None, :]
    return jnp.maximum(tau * u, (tau - 1) * u).sum(-1)


@jax.jit
def gaussian_nll(mean: Attributes, log_std: Attributes, labels: Attributes) -> Attributes:
    """log σ + ½((label - μ)/σ)²: URM's probabilistic head (arXiv:2410.00847), without constant.

    Regressing on a reparameterised sample μ + σε instead, also seen, drives σ to 0.

    >>> gaussian_nll(jnp.zeros((1, 1)), jnp.zeros((1, 1)), jnp.array([[2.0]]))
    Array([[2.]], dtype=float32)
    """
    log_std = at_least_float32(log_std)
    z = (at_least_float32(labels) - mean) * jnp.exp(-log_std)
    return log_std + 0.5 * z * z


@jax.jit
def gated_score(
    attributes: Attributes, gate_logits: Attributes, *, temperature: ScalarLike = 10.0
) -> Float[Array, "B"]:
    """softmax(gate / T) · attributes: ArmoRM's prompt-conditioned mixture (arXiv:2406.12845).

    The gate must see the prompt only.

    >>> gated_score(jnp.array([[1.0, 3.0]]), jnp.array([[0.0, 0.0]]))
    Array([2.], dtype=float32)
    """
    weights = jax.nn.softmax(at_least_float32(gate_logits) / temperature)
    return (weights * attributes).sum(-1)


@jax.jit
def decorrelate(scores: Float[Array, "B"], nuisance: Float[Array, "B"]) -> Float[Array, "B"]:
    """scores - λ nuisance with λ = Cov/Var, so that their correlation is 0 (ArmoRM's verbosity).

    >>> decorrelate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0, 2.0]))
    Array([1., 1., 1.], dtype=float32)
    """
    scores, nuisance = at_least_float32(scores), at_least_float32(nuisance)
    centred = nuisance - nuisance.mean()
    variance = (centred**2).mean()
    slope = (centred * scores).mean() / jnp.where(variance > 0, variance, 1.0)
    return scores - slope * nuisance


@jax.jit
def step_classification(
    logits: Float[Array, "B T C"], labels: Int[Array, "B T"]
) -> tuple[Float[Array, "B T"], dict[str, Float[Array, "B T"]]]:
    """Cross-entropy at the end of each reasoning step (process rewards, arXiv:2305.20050).

    `labels` are class ids where a step ends and -100 elsewhere, where the loss is 0. No shift: the
    logits at the step's last token classify the step.

    >>> loss, _ = step_classification(jnp.zeros((1, 2, 2)), jnp.array([[-100, 1]]))
    >>> loss
    Array([[0.       , 0.6931...]], dtype=float32)
    """
    known = labels >= 0
    logits = jnp.where(known[..., None], at_least_float32(logits), 0.0)
    index = jnp.where(known, labels, 0)
    logp = jnp.take_along_axis(jax.nn.log_softmax(logits), index[..., None], -1)[..., 0]
    right = (logits.argmax(-1) == labels) & known
    return jnp.where(known, -logp, 0.0), {"accuracy": right.astype(logp.dtype)}


@jax.jit
def verdict_nll(
    yes_logp: Float[Array, "B"], no_logp: Float[Array, "B"], correct: Shaped[Array, "B"]
) -> Float[Array, "B"]:
    """NLL of a generative verifier's right verdict token (GenRM, arXiv:2408.15240).

    Log-probabilities over the whole vocabulary: probability left for other tokens costs too. The
    score of an answer is p(yes). Over {yes, no} alone it is binary cross-entropy.

    >>> logp = jnp.log(jnp.array([0.25]))
    >>> verdict_nll(yes_logp=logp, no_logp=logp, correct=jnp.array([1]))
    Array([1.3862...], dtype=float32)
    """
    return -at_least_float32(jnp.where(correct != 0, yes_logp, no_logp))
