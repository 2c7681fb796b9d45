import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.losses import distill, distill_policy, distill_topk, distill_uld, logprobs


def problem(dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = ((2, 7, 4), (4, 11), (2, 7, 3), (3, 11))
    return [jnp.asarray(rng.normal(size=s), dtype) for s in shapes]


@pytest.mark.parametrize("beta", [0, 0.3, 1])
@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
@jax.enable_x64(True)
def test_chunked_divergence_equals_the_stored_form_in_value_and_gradient(beta, chunk):
    student, head, teacher, teacher_head = problem()
    mask = jnp.ones((2, 7)).at[1, 4:].set(0)
    options = {"temperature": 0.7, "student_softcap": 3.0, "teacher_scale": 0.5}

    def stored(student, head):
        s = logprobs.log_softmax(student @ head, temperature=0.7, softcap=3.0)
        t = logprobs.log_softmax(teacher @ teacher_head, temperature=0.7, scale=0.5)
        return (distill.divergence(s, t, beta=beta) * mask * jnp.arange(7.0)[None]).sum()

    def chunked(student, head):
        out, _ = distill.chunked_divergence(
            student, head, teacher, teacher_head, mask=mask, beta=beta, chunk=chunk, **options
        )
        return (out * jnp.arange(7.0)[None]).sum()

    got = jax.value_and_grad(chunked, (0, 1))(student, head)
    want = jax.value_and_grad(stored, (0, 1))(student, head)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), got, want)


def test_chunked_divergence_stores_no_logits():
    B, T, D, V = 1, 512, 64, 50_000
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((B, T, D), (D, V), (B, T, D), (D, V))]

    def total(*arrays):
        return distill.chunked_divergence(*arrays, beta=0.5)[0].sum()

    compiled = jax.jit(jax.value_and_grad(total, (0, 1))).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 102e6  # one [B, T, V]


def test_masked_hidden_states_may_be_nan():
    student, head, teacher, teacher_head = problem(np.float32)
    mask = jnp.zeros((2, 7)).at[0, 0].set(1)
    student = jnp.where(mask[..., None] != 0, student, jnp.nan)

    def total(student, head):
        return distill.chunked_divergence(
            student, head, teacher, teacher_head, mask=mask, beta=0.5, chunk=2
        )[0].sum()

    value, grads = jax.value_and_grad(total, (0, 1))(student, head)
    assert value > 0
    assert all(jnp.isfinite(g).all() for g in grads)


def test_entries_that_neither_can_say_do_not_count():
    pair = jnp.log(jnp.asarray([[0.5, 0.5], [0.9, 0.1]]))
    padded = jnp.concatenate([pair, jnp.full((2, 1), -jnp.inf)], 1)
    for beta in (0, 0.4, 1):
        want = distill.divergence(pair[0], pair[1], beta=beta)
        value, grad = jax.value_and_grad(
            lambda x, beta=beta: distill.divergence(x, padded[1], beta=beta)
        )(padded[0])
        np.testing.assert_allclose(value, want, rtol=1e-6)
        assert jnp.isfinite(grad).all()


def test_a_divergence_outside_the_family_is_refused():
    x = jnp.log(jnp.asarray([0.5, 0.5]))
    with pytest.raises(ValueError, match=r"beta=1\.5"):
        distill.divergence(x, x, beta=1.5)


@jax.enable_x64(True)
@pytest.mark.parametrize("beta", [0, 0.5, 1])
@pytest.mark.parametrize("support", ["student", "teacher", "union", None])
def test_top_k_of_the_whole_vocabulary_is_the_full_divergence(beta, support):
    rng = np.random.default_rng(1)
    student, teacher = (jnp.asarray(rng.normal(size=(1, 3, 5))) for _ in range(2))
    want = distill.divergence(
        logprobs.log_softmax(student), logprobs.log_softmax(teacher), beta=beta
    )
    got = distill_topk.topk_divergence(
        student, teacher, beta=beta, k=5, support=support, tail=False
    )
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_the_tail_bucket_completes_the_distribution():
    part = jnp.log(jnp.asarray([0.5, 0.2]))
    np.testing.assert_allclose(np.exp(distill_topk.tail_bucket(part)), [0.5, 0.2, 0.3], rtol=1e-6)
    whole = jnp.log(jnp.asarray([0.5, 0.5]))
    grad = jax.grad(lambda x: distill_topk.tail_bucket(x).sum())(whole)
    assert jnp.isfinite(grad).all()


def test_an_unknown_support_is_refused():
    x = jnp.zeros((1, 1, 3))
    with pytest.raises(ValueError, match="support='both'"):
        distill_topk.topk_divergence(x, x, beta=0.5, k=2, support="both")


def test_sampled_reverse_kl_is_the_gradient_of_the_reverse_kl_in_expectation():
    z, teacher = jnp.asarray([0.3, -1.0, 0.5]), jnp.log(jnp.asarray([0.2, 0.5, 0.3]))

    def sampled(z):
        logp = jax.nn.log_softmax(z)
        p = jax.lax.stop_gradient(jnp.exp(logp))
        return (p * distill_topk.sampled_reverse_kl(logp[None], teacher[None])[0]).sum()

    want = jax.grad(lambda z: distill.reverse_kl(jax.nn.log_softmax(z), teacher))(z)
    np.testing.assert_allclose(jax.grad(sampled)(z), want, atol=1e-6)


def test_minillm_advantage_is_a_normalised_return_to_go():
    student = jnp.zeros((1, 4))
    teacher = jnp.asarray([[1.0, 2.0, 4.0, jnp.nan]])
    mask = jnp.asarray([[1, 1, 1, 0]])
    rows = {"student_logps": student, "teacher_logps": teacher, "mask": mask, "gamma": 0.5}
    plain = distill_policy.minillm_advantage(**rows, length_normalize=False)
    np.testing.assert_allclose(plain, [[1 + 1 + 1, 2 + 2, 4, 0]])
    normal = distill_policy.minillm_advantage(**rows)
    np.testing.assert_allclose(normal, [[3 / 1.75, 4 / 1.5, 4, 0]], rtol=1e-6)


def test_the_teachers_reward_is_a_constant():
    def total(x):
        rows = {"student_logps": x, "teacher_logps": 2 * x, "mask": jnp.ones((1, 3))}
        return distill_policy.minillm_advantage(**rows).sum()

    assert (jax.grad(total)(jnp.ones((1, 3))) == 0).all()


def test_early_divergence_weighs_most_in_iw_opd():
    rows = {"student_logps": jnp.full((1, 3), -1.0), "mask": jnp.ones((1, 3))}
    _, stats = distill_policy.iw_opd(**rows, teacher_logps=jnp.asarray([[-3.0, -2.0, 0.0]]))
    np.testing.assert_allclose(stats["weight"], [[2, 1.5, 1.25]])
    np.testing.assert_allclose(stats["advantage"], [[-4, -1.5, 1.25]])
    loss, stats = distill_policy.iw_opd(**rows, teacher_logps=rows["student_logps"])
    assert jnp.isfinite(loss).all()


def test_tokens_are_grouped_where_both_sides_end_at_one_byte():
    student, teacher, count = distill_uld.align_by_bytes([2, 3, 6, 9], [1, 3, 4, 5, 6, 8])
    assert count == 3
    np.testing.assert_array_equal(student, [0, 0, 1, 2])
    np.testing.assert_array_equal(teacher, [0, 0, 1, 1, 1, 2])
    student, teacher, count = distill_uld.align_by_bytes([2, 4], [2, 4, 4])
    assert count == 2
    np.testing.assert_array_equal(teacher, [0, 1, -1])  # a trailing token of no bytes


def test_merged_positions_multiply_by_what_was_actually_said():
    probs = jnp.asarray([[0.5, 0.5], [0.2, 0.8], [0.3, 0.7]])
    ids, group = jnp.asarray([1, 0, 1]), jnp.asarray([0, 0, 1])
    first = distill_uld.merge_positions(probs, ids, group, groups=2, base="first")
    np.testing.assert_allclose(first, [[0.1, 0.1], [0.3, 0.7]], rtol=1e-6)
    last = distill_uld.merge_positions(probs, ids, group, groups=2, base="last")
    np.testing.assert_allclose(last, [[0.1, 0.4], [0.3, 0.7]], rtol=1e-6)


def test_sorted_l1_ignores_the_order_of_vocabularies():
    a = jnp.asarray([[0.7, 0.1, 0.2]])
    b = jnp.asarray([[0.0, 0.1, 0.2, 0.7]])
    np.testing.assert_allclose(distill_uld.sorted_l1(a, b), [0.0], atol=1e-7)
    np.testing.assert_allclose(
        distill_uld.sorted_l1(a, jnp.asarray([[0.5, 0.5]])), [0.2 + 0.3 + 0.1], rtol=1e-6
    )
