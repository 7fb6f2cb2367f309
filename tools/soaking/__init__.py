"""The parts of tools/soak: plan (what is done in a round), job (a started program and its processes), folder (what a
run's folder shows), strike (the attacks), check (what has to hold) and round (one after the other)."""
