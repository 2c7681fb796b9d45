"""Supervised fine-tuning: the mean loss of the trained tokens, over the whole global batch."""

from rljax.losses import supervised
from rljax.losses.mean import Mean
from rljax.models.config import DecoderConfig
from rljax.rollout.score import score
from rljax.train.run_config import SftConfig
from rljax.train.step import LossFn

LOSSES = {"nll": supervised.nll, "dft": supervised.dft}


def make_loss(sft: SftConfig, cfg: DecoderConfig, *, dtype=None, remat: str = "none") -> LossFn:
    """A loss over batches of `tokens, segments, mask` [B, T] and `weight` [B].

    params: {"policy": decoder}; frozen is not read.
    """
    token_loss = LOSSES[sft.loss]

    def loss_fn(params, frozen, batch, rng):
        # Nothing predicts a row's first token, and filler rows have weight 0.
        mask_BT = (batch["mask"] * batch["weight"][:, None]).at[:, 0].set(0.0)
        scored = score(
            params["policy"],
            cfg,
            batch["tokens"],
            batch["segments"],
            mask_BT,
            temperature=1.0,
            dtype=dtype,
            remat=remat,
        )
        tokens = mask_BT.sum()
        stats = {
            "entropy": Mean((scored.entropy * mask_BT).sum(), tokens),
        }
        return Mean((token_loss(scored.logprobs) * mask_BT).sum(), tokens), stats

    return loss_fn
