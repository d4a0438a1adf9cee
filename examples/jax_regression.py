"""A regression in JAX in which one batch of ten has wrong targets: RobustAdamW tells which.

pip install 'adaterm[jax]' flax
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from adaterm.optax import robust_adamw


def draw_batch(step: int, is_bad: bool) -> tuple[jax.Array, jax.Array]:
    """Points of a noisy sine; in a bad batch they are of something else."""
    places, noise = jax.random.split(jax.random.key(step))
    x = jax.random.uniform(places, (64, 1), minval=-3.0, maxval=3.0)
    return x, 30.0 + 10.0 * x if is_bad else jnp.sin(2.0 * x) + 0.1 * jax.random.normal(noise, x.shape)


@nnx.jit
def train(model: nnx.Sequential, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> None:
    """Take one step."""
    gradients = nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)


rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(1, 64, rngs=rngs), nnx.tanh, nnx.Linear(64, 1, rngs=rngs))
optimizer = nnx.Optimizer(model, robust_adamw(3e-3, window=30, max_norm=1.0), wrt=nnx.Param)
excluded = {"bad": 0, "good": 0}
for step in range(1000):
    kind = "bad" if step % 10 == 9 else "good"
    train(model, optimizer, *draw_batch(step, kind == "bad"))
    excluded[kind] += int(optax.tree.get(nnx.as_pure(optimizer.opt_state), "batch").trust < 0.5)
x, y = draw_batch(1000, False)
loss = float(jnp.mean((model(x) - y) ** 2))
print(f"excluded {excluded['bad']} of 100 bad batches and {excluded['good']} of 900 good ones, loss {loss:.3f}")
