"""Where a kernel will run."""

import jax


def platform() -> str:
    """Where traced code will run: by the mesh in use, or else by JAX's default device."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
