# SPDX-License-Identifier: BSD-3-Clause
# In: an ETDump, and optionally the record of the program that ran. Out: time, values and source line of each operation.
# The names are ExecuTorch's names.
"""Inspector: the operations that ran on a device, their times, and their locations in the model.

>>> inspector = Inspector(etdump_path="net.etdp", etrecord="net.etrecord")
>>> inspector.print_data_tabular()
"""

from torchette.devtools.inspector.comparison import compare_results
from torchette.devtools.inspector.events import Event, EventBlock, PerfData, TimeScale
from torchette.devtools.inspector.inspector import Inspector
from torchette.devtools.inspector.table import Table

__all__ = ["Event", "EventBlock", "Inspector", "PerfData", "Table", "TimeScale", "compare_results"]
