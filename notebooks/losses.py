# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Import a loss and differentiate it
# `rljax.losses` holds functions of arrays. Nothing else of the package is needed.

# %%
# %pip install -q rljax  # skip if it is installed

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

from rljax.losses import dpo, hinge, ipo

# %% [markdown]
# A preference loss takes summed log-probabilities and returns one value per pair, with stats.

# %%
pair = {
    "rejected": jnp.array([-14.0]),
    "ref_chosen": jnp.array([-13.0]),
    "ref_rejected": jnp.array([-13.5]),
}
loss, stats = dpo(chosen=jnp.array([-12.0]), **pair, beta=0.1)
print(loss, stats)

# %% [markdown]
# Its gradient is that of equation 7: it vanishes as the pair is won.

# %%
gradient = jax.grad(lambda chosen: dpo(chosen=chosen, **pair, beta=0.1)[0].sum())
print(gradient(jnp.array([-12.0])), gradient(jnp.array([30.0])))

# %% [markdown]
# Three losses over the same margin.

# %%
margins = jnp.linspace(-30, 30, 121)
zero = jnp.zeros_like(margins)
for name, one in {"dpo": dpo, "hinge": hinge, "ipo": ipo}.items():
    values, _ = one(chosen=margins, rejected=zero, ref_chosen=zero, ref_rejected=zero, beta=0.1)
    plt.plot(margins, jnp.minimum(values, 4.0), label=name)
plt.xlabel("log-ratio of chosen minus rejected")
plt.legend()
plt.show()

# %% [markdown]
# And a policy, trained by nothing but a loss: a three-armed bandit whose best arm wins.

# %%
from rljax.losses import ppo_clip

rewards = jnp.array([0.0, 0.2, 1.0])


def step(logits, key):
    logp = jax.nn.log_softmax(logits)
    arms = jax.random.categorical(key, logits, shape=(64,))
    advantages = rewards[arms] - rewards[arms].mean()

    def objective(logits):
        new = jax.nn.log_softmax(logits)[arms]
        per_token, _ = ppo_clip(
            logps=new[:, None], old_logps=logp[arms][:, None], advantages=advantages[:, None]
        )
        return per_token.mean()

    return logits - jax.grad(objective)(logits), logp


logits, history = jax.lax.scan(step, jnp.zeros(3), jax.random.split(jax.random.key(0), 100))
best = float(jax.nn.softmax(logits)[2])
print(f"probability of the best arm: {best:.2f}")
plt.plot(jnp.exp(history))
plt.show()
assert best > 0.9
