import os

# Before JAX is imported: four devices, of which a CPU is made, also on a machine with a GPU.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
