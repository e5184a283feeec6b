# SPDX-License-Identifier: BSD-3-Clause
# The operators of the Edge dialect and their supported dtypes.
