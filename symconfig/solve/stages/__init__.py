"""The best cut of a model into (virtual) pipeline stages and what each recomputes, with a proof that none is better."""
