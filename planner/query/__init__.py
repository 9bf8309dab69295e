"""Questions: what is asked, and the contexts, space and goal that follow from it."""
