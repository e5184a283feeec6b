# SPDX-License-Identifier: BSD-3-Clause
# In: the dump of a device, and where there is one the record of the program that ran. Out: what each operation took and
# gave, and which line of the model it comes from. The names are ExecuTorch's.
"""Inspector: what ran on a device, how long each operation took, and where it comes from.

>>> inspector = Inspector(etdump_path="net.etdp", etrecord="net.etrecord")
>>> inspector.print_data_tabular()
"""

from torchette.devtools.inspector.comparison import compare_results
from torchette.devtools.inspector.events import Event, EventBlock, PerfData, TimeScale
from torchette.devtools.inspector.inspector import Inspector
from torchette.devtools.inspector.table import Table

__all__ = ["Event", "EventBlock", "Inspector", "PerfData", "Table", "TimeScale", "compare_results"]
