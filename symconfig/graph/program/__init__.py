"""Programs of operators over named dims, from any source; which dims a mesh axis may split; repeats folded."""
