# SPDX-License-Identifier: BSD-3-Clause
# The Python face of the C++ runtime. Imports numpy and the native module, never torch.
