"""Documents as clients see them. `service` accepts, lists and deletes them, `views` builds what is answered,
`metadata` checks attributes."""
