"""Named dims of several residual streams."""

from __future__ import annotations

STREAMS = "residual_streams"
MADE = "made_streams"  # the streams as a product gives them
MODES = "stream_modes"  # as many again, by which a token is told
OTHERS = "other_streams"  # all but the first
STREAM_IN, STREAM_OUT = "stream_in_size", "stream_out_size"  # the hidden size, as projections between streams have it
READ = "stream_weights"  # numbers of a token that weigh its streams
WRITTEN = "written_streams"
LOW = "stream_rank"
DIVISIONS = "stream_divisions"  # by the sums of rows or columns of a mixing matrix, in turn
