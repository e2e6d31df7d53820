package sharegroups;

import java.util.Objects;
import java.util.concurrent.Callable;

/** Expectations; one that does not hold fails the case. */
final class Check {
    private Check() {}

    static void that(boolean holds, String expectation) {
        if (!holds) throw new AssertionError("expected: " + expectation);
    }

    static void equal(Object expected, Object actual, String subject) {
        if (!Objects.equals(expected, actual))
            throw new AssertionError(subject + ": expected " + expected + ", but was " + actual);
    }

    /** The error, which is of this type. */
    static <E extends Throwable> E fails(Class<E> type, Callable<?> action) {
        Object result;
        try {
            result = action.call();
        } catch (Throwable error) {
            if (type.isInstance(error)) return type.cast(error);
            throw new AssertionError("expected " + type.getSimpleName() + ", but was " + error, error);
        }
        throw new AssertionError("expected " + type.getSimpleName() + ", but the call returned " + result);
    }

    /** Repeat until the condition holds; fails after `seconds`. */
    static void eventually(double seconds, String expectation, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (!condition.call()) {
            if (System.nanoTime() > deadline) throw new AssertionError("not within " + seconds + " s: " + expectation);
            Thread.sleep(50);
        }
    }
}
