"""Arrays whose references nobody counts.

The compiler counts references to an array wherever it is named, sliced or passed on, in memory that all
threads share: those that name the same array at every step wait for one another.
"""

from __future__ import annotations

from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def borrowed(typing_context, array):  # type: ignore[no-untyped-def]
    """The same array without its count; whoever called the kernel keeps it alive."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        given = context.make_array(array)(context, builder, arguments[0])
        for field in ("meminfo", "parent"):
            setattr(given, field, cgutils.get_null_value(getattr(given, field).type))
        return given._getvalue()

    return array(array), generate
