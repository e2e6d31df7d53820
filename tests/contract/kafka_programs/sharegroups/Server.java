package sharegroups;

import java.lang.annotation.*;

/** The settings of the server that a case needs, by the name of a profile in scripts/conformance/share_groups.py. */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface Server {
    String DEFAULT = "default";

    String value();
}
