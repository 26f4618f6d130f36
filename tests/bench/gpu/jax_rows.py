"""Rows of the benchmark that need JAX: one line each, name and value, tab between."""

import time

import jax
import jax.numpy as jnp


def loss(weights, batch):
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return jnp.mean(batch**2)


keys = jax.random.split(jax.random.PRNGKey(0), 5)
weights = [jax.random.normal(key, (256, 256)) for key in keys[:4]]
batch = jax.random.normal(keys[4], (64, 256))
gradient = jax.jit(jax.grad(loss))
jax.block_until_ready(gradient(weights, batch))
for _ in range(100):
    last = gradient(weights, batch)
jax.block_until_ready(last)
begin = time.time()
for _ in range(5000):
    last = gradient(weights, batch)
jax.block_until_ready(last)
print(f"JAX jit(grad) it/s\t{5000 / (time.time() - begin):.1f}")


@jax.jit
def scan(state):
    return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ weights[0]), None), state, None, 256)[0]


jax.block_until_ready(scan(batch))
begin = time.time()
for _ in range(100):
    last = scan(batch)
jax.block_until_ready(last)
print(f"JAX scan of 256 steps it/s\t{100 / (time.time() - begin):.1f}")

# Without jit: each operation is looked up and launched by itself.
for _ in range(100):
    last = batch + batch
jax.block_until_ready(last)
begin = time.time()
for _ in range(5000):
    last = batch + last
jax.block_until_ready(last)
print(f"JAX addition it/s\t{5000 / (time.time() - begin):.1f}")


def train(carry, _):
    return jax.tree.map(lambda weight, slope: weight - 0.01 * slope, carry, jax.grad(loss)(carry, batch)), None


# A whole training loop on the GPU: the program waits once.
loop = jax.jit(lambda state: jax.lax.scan(train, state, None, 64)[0])
jax.block_until_ready(loop(weights))
begin = time.time()
for _ in range(50):
    last = loop(weights)
jax.block_until_ready(last)
print(f"JAX scan of 64 training steps it/s\t{50 / (time.time() - begin):.1f}")
