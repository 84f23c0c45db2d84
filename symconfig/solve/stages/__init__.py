"""The best cut of a model into (virtual) pipeline stages, with what each recomputes, and a proof that none is better."""
