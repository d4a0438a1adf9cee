"""The engines: each runs a rule over tensors that share device and precision, and only they change state.

`reference` follows the equations tensor by tensor and defines what is right; `foreach` runs the same equations over
lists of tensors; `cpu` and `gpu` run them in fused kernels. A `GroupStep` owns those of a parameter group. Between
`gauge` and `finish` an `Agreement` lets ranks that share tensors add up what they gauged.
"""
