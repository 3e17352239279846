"""The optimizer: which parameters decay (`groups`), the object itself (`build`), the rate by step
(`schedule`)."""
