import os

import torch

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported: its kernels then run on a CPU

torch.set_num_threads(1)  # the tensors are small, and threads would only wait for each other
