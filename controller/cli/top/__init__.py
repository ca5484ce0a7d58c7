"""`roundhouse top`: where its figures come from, and how they are shown."""
