"""Shipped tests: the table of cases, poisoned inputs, tolerance and conformance, for any backend and framework.

    from tilewise.testing import verify
    for result in verify(backends=["cpu"], frameworks=["numpy"], tags=["smoke"]):
        print(result)
"""

from tilewise.testing.conform import Result as Result
from tilewise.testing.conform import verify as verify
