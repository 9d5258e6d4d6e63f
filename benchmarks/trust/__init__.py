"""Problems with exact truths on which the default of off-policy evaluation is judged; see README.md."""
