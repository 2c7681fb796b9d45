import json
import pathlib

import jax.numpy as jnp
import numpy as np

from rljax.losses import controllers

TRAPS = json.loads(
    (pathlib.Path(__file__).parents[2] / "tests/goldens/traps/cases.json").read_text()
)


def test_trap_p16_the_kl_coefficient_over_six_updates():
    case = TRAPS["P16"]
    kl = case["input"]["kl"]
    coef, seen = kl["init"], []
    for value in case["input"]["kl_seen"]:
        coef = controllers.adaptive_kl(
            coef, value, target=kl["target"], horizon=kl["horizon"], batch=kl["n_per_update"],
            clip=kl["clip"],
        )  # fmt: skip
        seen.append(float(coef))
    np.testing.assert_allclose(seen, case["expect"]["coef_after_each"], rtol=1e-6)


def test_the_entropy_bonus_switches_off_above_the_target():
    coef, used = controllers.adaptive_entropy(0.01, 0.5, target=1.0, delta=0.005, high=0.012)
    np.testing.assert_allclose([coef, used], [0.012, 0.012], rtol=1e-6)
    coef, used = controllers.adaptive_entropy(0.002, 1.5, target=1.0, delta=0.005)
    np.testing.assert_allclose([coef, used], [0.0, 0.0])


def test_the_multiplier_rises_while_the_constraint_is_broken_and_is_bounded():
    np.testing.assert_allclose(
        controllers.lagrange_multiplier(jnp.log(2.0), 0.5, lr=0.1), np.log(2) + 0.1, rtol=1e-6
    )
    assert controllers.lagrange_multiplier(0.0, -1.0) < 0
    np.testing.assert_allclose(controllers.lagrange_multiplier(0.0, 1e9), np.log(20), rtol=1e-6)
