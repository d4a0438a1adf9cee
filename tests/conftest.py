import torch

torch.set_num_threads(1)  # the tensors are small, and threads would only wait for each other
